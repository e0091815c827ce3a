"""The Slurm recipe on a cluster of this host, which the test starts.

Of two nodes by name: Slurm begins a het job only where each part could have a node of its own.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from counterpoise.tools.demo.data import ensure_demo_data
from counterpoise.workers import TarDataset, VisionLanguage
from tests.imports import ROOT
from tests.workers.fleet.test_ray import SMALL

NEEDED = ("slurmctld", "slurmd", "munged", "sbatch")
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
MISSING = [name for name in NEEDED if shutil.which(name, path=PATH) is None]
pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.skipif(os.getuid() != 0, reason="slurmd needs root"),
]
SBIN = Path("/usr/sbin")
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d.%n.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/d.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
DefMemPerCPU=100
SlurmdParameters=config_overrides
MpiDefault=none
SchedulerParameters=sched_interval=2,bf_interval=1
NodeName=DEFAULT CPUs=8 RealMemory=16000 State=UNKNOWN
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
# A rank's training script, as a user would write it.
TRAIN = """
import json, os
import counterpoise as cp
import torch.distributed as dist

dist.init_process_group("gloo")
look = cp.workers.VisionLanguage(**json.loads(os.environ["SMALL"]))
data = cp.TarDataset(os.environ["DATA"] + "/*.tar", look)
loader = cp.DataLoader(
    data, balance="fixed", batch_size=8, shuffle=True, collate_fn=list, timeout=120,
    balancer=os.environ["COUNTERPOISE_BALANCER"], keys=os.environ["COUNTERPOISE_KEYS"],
)
keys = [loader.step_info.keys for _ in loader]
with open(os.environ["OUT"] + f".{dist.get_rank()}", "w") as file:
    json.dump([list(each) for each in keys], file)
loader.close()
dist.destroy_process_group()
"""


def free_ports(count):
    with_ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in with_ports]
    for each in with_ports:
        each.close()
    return ports


@pytest.fixture
def slurm(tmp_path):
    folder = tmp_path / "slurm"
    for name in ("state", "spool.n1", "spool.n2"):
        (folder / name).mkdir(parents=True)
    tmp_path.chmod(0o755)
    key, conf = folder / "munge.key", folder / "slurm.conf"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    conf.write_text(CONF.format(folder=folder, host=host, ports=free_ports(3)))
    environment = {**os.environ, "SLURM_CONF": str(conf), "PATH": PATH}
    commands: list[list[Any]] = [
        [SBIN / "munged", "--foreground", "--force", f"--key-file={key}",
         f"--socket={folder}/munge.socket", f"--pid-file={folder}/munge.pid",
         f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"],
        [SBIN / "slurmctld", "-D", "-c", "-f", str(conf)],
        *([SBIN / "slurmd", "-D", "-f", str(conf), "-N", name] for name in ("n1", "n2")),
    ]  # fmt: skip
    started = []
    try:
        started += [subprocess.Popen([*map(str, each)], env=environment) for each in commands]
        wait_until(
            lambda: run(["sinfo", "-hN", "-t", "idle"], environment).count(b"n") >= 2,
            "two idle nodes",
        )
        yield environment
    finally:
        for each in reversed(started):
            each.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.wait(30)
        # Those that hang, and steps of a job that goes on, which outlive a slurmd.
        for pid in pids_with(f"SLURM_CONF={conf}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for each in started:
            each.wait()


def pids_with(variable):
    """Return the processes that have a variable in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if variable.encode() in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
    return found


def run(words, environment):
    return subprocess.run(words, env=environment, capture_output=True, timeout=60).stdout


def wait_until(is_so, what, limit_s=120):
    pause = threading.Event()
    for _ in range(limit_s * 2):
        if is_so():
            return
        pause.wait(0.5)
    raise AssertionError(f"no {what}")


def test_the_script_trains_and_leaves_nothing(slurm, tmp_path):
    shards = Path(ensure_demo_data(tmp_path / "data", samples=48, shards=2)).parent
    script, out = tmp_path / "train.py", tmp_path / "keys"
    script.write_text(TRAIN)
    environment = {
        **slurm,
        "DATA": str(shards), "TRAIN": str(script), "OUT": str(out), "RUN": str(tmp_path),
        "SMALL": '{"tile_size": 32, "max_tiles": 4, "tokens_per_tile": 4}', "RANKS_PER_NODE": "2",
    }  # fmt: skip
    log = tmp_path / "job.log"
    words = ["sbatch", "--parsable", f"--output={log}", f"--chdir={tmp_path}", "--export=ALL"]
    job = (
        run([*words, str(ROOT / "deploy" / "slurm" / "train.sbatch")], environment).decode().strip()
    )
    try:
        wait_until(lambda: not run(["squeue", "-h", "-j", job], environment), "end of the job", 200)
        delivered = [key for rank in range(2) for keys in json.loads(
            Path(f"{out}.{rank}").read_text()) for key in keys]  # fmt: skip
    except (AssertionError, OSError) as error:
        raise AssertionError(log.read_text()) from error
    data = TarDataset(str(shards / "*.tar"), VisionLanguage(**SMALL))
    assert sorted(delivered) == sorted(data.key(index) for index in range(48))
    assert not pids_with(f"SLURM_JOB_ID={job}")
    assert not list(tmp_path.glob("counterpoise-*"))
    assert "forcing job termination" not in log.read_text()  # workers were drained
