#!/bin/bash
# The Containerfile's steps where no image can be built: the same two installs in a fresh virtual
# environment, then balancer, worker and a loader as user 10001 on a read-only root with a /tmp of
# its own. As root, from the repository's root: bash deploy/container/try.sh
set -euo pipefail
work=$(mktemp -d /var/tmp/try-container.XXXXXX)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
python3.11 -m venv "$work/opt"
# shellcheck disable=SC2086
"$work/opt/bin/pip" install -q ${TORCH:-torch==2.13.0}
git archive HEAD | tar -x --one-top-level="$work/src"
"$work/opt/bin/pip" install -q "$work/src[metrics,stores]"

cat > "$work/job.py" <<'PY'
from pathlib import Path

import counterpoise as cp
from counterpoise.tools.demo.data import ensure_demo_data

files = ensure_demo_data(Path("/tmp/data"), samples=24, shards=1)
loader = cp.DataLoader(
    cp.TarDataset(str(files), cp.VisionLanguage()), balance="fixed", shuffle=True, batch_size=4,
    collate_fn=list, balancer="tcp://127.0.0.1:5591", timeout=60,
)
print(sum(map(len, loader)), "samples came")
loader.close()
PY
cat > "$work/run.sh" <<'SH'
set -e
touch /var/tmp/written 2> /tmp/refused && { echo "the root can be written"; exit 1; }
counterpoise balancer --listen tcp://127.0.0.1:5591 --metrics 127.0.0.1:5592 & balancer=$!
mkdir -p /tmp/data
counterpoise worker tcp://127.0.0.1:5591 --root /tmp/data & worker=$!
trap 'kill $worker $balancer; wait' EXIT
python job.py
python -c 'import urllib.request as u; print(len(u.urlopen("http://127.0.0.1:5592/metrics").read()) > 500)'
SH
unshare --mount --pid --fork --mount-proc bash -euc '
    mount --make-rprivate /
    mkdir "$0/root"
    mount --rbind / "$0/root"
    mount -o remount,bind,ro "$0/root"
    mount -t tmpfs tmpfs "$0/root/tmp"
    # Of the home of root only the Python that is there, if it is.
    mount -t tmpfs -o mode=755 tmpfs "$0/root/root"
    case "$1" in /root/*) mkdir -p "$0/root$1"; mount --bind "$1" "$0/root$1" ;; esac
    cd "$0"
    chroot --userspec=10001:10001 "$0/root" env -i -C "$0" HOME=/tmp COUNTERPOISE_CACHE=/tmp/cache \
        PYTHONDONTWRITEBYTECODE=1 PATH="$0/opt/bin:/usr/bin:/bin" bash run.sh' "$work" "$(python3.11 -c 'import sys; print(sys.base_prefix)')"
