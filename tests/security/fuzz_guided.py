"""The long run, guided by coverage: atheris (`pip install -e '.[fuzz]'`) feeds the targets.

    PYTHONPATH=.venv/typing .venv/bin/python -m tests.security.fuzz_guided stranger --runs 1000000

Half of the mutations are libFuzzer's, of bytes; half change fields of the messages. The last lines
say how many inputs were run and how many branches were covered. What is found is kept as a file,
`crash-...`, with all inputs since the target's state was new: `--replay FILE` runs them again.
"""

import argparse
import atexit
import contextlib
import itertools
import random
import sys
import tempfile
from collections import deque
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["counterpoise.balancer", "counterpoise.workers"]):
    from tests.security.fuzz_targets import FRAMES, TARGETS
    from tests.security.hostile import Mutator, Wired

# libFuzzer ends here where memory grows, in MB; it is about 500 with torch loaded.
MOST_MB = 1500
# Inputs that are kept to repeat what was found.
HISTORY = 5000
LONGEST = 4096


class Recorder:
    """Runs a target; when that fails, writes down what was said until then."""

    def __init__(self, target, folder):
        self.target = target
        self.folder = folder
        self.said = deque(maxlen=HISTORY)
        self.runs = 0

    def __call__(self, data):
        self.runs += 1
        self.said.append(data)
        try:
            self.target(data)
        except BaseException:
            found = self.folder / f"crash-{self.target.name}-{self.runs}"
            found.write_text("\n".join(each.hex() for each in self.said))
            print(f"run {self.runs} failed: --replay {found}", file=sys.stderr)
            raise


def field_mutator(name, seeds):
    """Return a mutator: bytes changed by libFuzzer, or fields of a message or a job by ours."""
    mutator = Mutator([Wired(b"", data[1:]) for data in seeds] if name in FRAMES else [], 0)

    def changed(data, control):
        if name in FRAMES:
            return bytes([control]) + mutator.fields_changed(data[1:])
        return mutator.odd_json(data.decode()).encode()

    def mutate(data, max_size, seed):
        mutator.random = random.Random(seed)
        if seed % 2 == 0 and len(data) > 1:
            with contextlib.suppress(Exception):  # what is no message has no fields
                return changed(data, seed >> 1 & 0xFF)[:max_size]
        return atheris.Mutate(data, max_size)

    return mutate


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=[*TARGETS])
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replay", type=Path, help="A file that a run has left.")
    parser.add_argument("--out", type=Path, default=Path(), help="Where such files are put.")
    chosen = parser.parse_args()
    target = TARGETS[chosen.target]()
    if chosen.replay:
        for line in chosen.replay.read_text().split():
            target(bytes.fromhex(line))
        return
    seeds = list(dict.fromkeys(target.seeds()))
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in zip(itertools.count(), seeds, strict=False):
            (Path(folder) / f"{number:05}").write_bytes(seed)
        longest = max(LONGEST, *map(len, seeds))
        options = [
            f"-runs={chosen.runs}", f"-seed={chosen.seed}", f"-max_len={longest}",
            f"-rss_limit_mb={MOST_MB}", "-print_final_stats=1", "-timeout=60", folder,
        ]  # fmt: skip
        recorder = Recorder(target, chosen.out)
        atexit.register(lambda: print(f"{recorder.runs} inputs run", file=sys.stderr))
        fields = chosen.target in (*FRAMES, "job")
        mutator = field_mutator(chosen.target, seeds) if fields else None
        atheris.Setup([sys.argv[0], *options], recorder, custom_mutator=mutator)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
