"""How a training script that catches nothing ends: with an error and its reason, never hanging."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.held_port import held_port

# Interpreters that import torch anew; `test_dead_peers` has what needs none.
pytestmark = pytest.mark.long
SCRIPT = "tests.sched.runtime.unattended"
LIMIT_S = 120


def environment() -> dict[str, str]:
    """The environment of the scripts; they import what this process does."""
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "GLOO_SOCKET_IFNAME": "lo",
    }


@pytest.fixture
def port() -> Iterator[int]:
    with held_port() as held:
        yield held


def start(folder: Path, what: str, port: int, ranks: int = 2) -> list[subprocess.Popen[str]]:
    (folder / "what").write_text(what)
    place = environment() | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        subprocess.Popen(
            [sys.executable, "-m", SCRIPT, str(folder)],
            env=place | {"RANK": str(rank), "WORLD_SIZE": str(ranks)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]


def ends(started: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Return how every process ended and what it said."""
    try:
        said = [process.communicate(timeout=LIMIT_S)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, text) for process, text in zip(started, said, strict=True)]


def test_an_error_of_a_pass_is_told_to_the_others(tmp_path, port) -> None:
    (code, said), (failed, own) = ends(start(tmp_path, "raise", port))
    assert (code, failed) == (1, 1)
    assert "ValueError: an image of no pixels" in own
    assert "in pass 1F1 of rank 1, step 1" in own
    assert "rank 1: 1F1 of rank 1 raised ValueError: an image of no pixels" in said


def wait_for_steps(folder: Path, process: subprocess.Popen, ranks: int) -> list[int]:
    """Return the ranks' process ids once all have run a step."""
    files = [folder / f"pid{rank}" for rank in range(ranks)]
    while not all(file.exists() and file.read_text() for file in files):
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
    return [int(file.read_text()) for file in files]


def test_a_rank_whose_peer_is_killed_ends_with_an_error(tmp_path, port) -> None:
    started = start(tmp_path, "train", port)
    os.kill(wait_for_steps(tmp_path, started[1], 2)[0], signal.SIGKILL)
    (killed, _), (code, said) = ends(started)
    assert (killed, code) == (-signal.SIGKILL, 1)
    assert "PipelineStalledError" in said


@pytest.mark.parametrize("what", ["stop", "raise"])
def test_under_torchrun_the_first_rank_to_fail_says_why(what, tmp_path) -> None:
    (tmp_path / "what").write_text(what)
    started = subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "3", "-m", SCRIPT, str(tmp_path)),
        ],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    if what == "stop":
        stopped = wait_for_steps(tmp_path, started, 3)[2]
        os.kill(stopped, signal.SIGSTOP)
    ((code, said),) = ends([started])
    assert code == 1
    if what == "stop":
        assert "PipelineStalledError: step" in said
        assert "rank 2 " in said
    else:
        assert "ValueError: an image of no pixels" in said
        assert "in pass 1F1 of rank 1, step 1" in said
