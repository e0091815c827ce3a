"""The vision-language example goes on, on another layout, as if nothing had been."""

import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.sched.runtime.checkpoint.test_files import load_example
from tests.sched.runtime.pool import WORLD, Pool, make_mesh

pytestmark = [pytest.mark.slow, pytest.mark.long]

EXAMPLE = Path(__file__).parents[4] / "examples" / "train_vlm.py"


def run_example(_rank: int, path: Path, cache: Path, words: list[str]) -> list[dict[str, Any]]:
    """Return the example's figures on all processes of the pool."""
    # The loader's workers are forked, as torchrun's processes would; the pool itself is spawned.
    multiprocessing.set_start_method("fork", force=True)
    example = load_example(path)
    given: Namespace = example.read_arguments(words)
    with patch.dict(os.environ, {"XDG_CACHE_HOME": str(cache)}):
        return list(example.train(make_mesh(given.pp), given))


def train(pool: Pool, cache: Path, *words: str) -> list[dict[str, Any]]:
    """Return what all ranks say of each step, whose losses are the same."""
    answers = pool.run(run_example, EXAMPLE, cache, list(words))
    assert len({tuple(one["loss"] for one in answer) for answer in answers}) == 1
    found: list[dict[str, Any]] = answers[0]
    return found


def test_the_example_goes_on_on_another_layout(pool: Pool, tmp_path: Path) -> None:
    words = ("--checkpoints", str(tmp_path / "saved"), "--save-every", "2", "--steps", "3")
    before = train(pool, tmp_path, *words, "--pp", "4")
    assert before[-1]["loss"] < before[0]["loss"]
    after = train(pool, tmp_path, *words, "--pp", "2")
    assert [one["step"] for one in after] == [2]
    for one, other in zip(after, before[2:], strict=True):
        assert (one["samples"], one["batch"]) == (other["samples"], other["batch"])
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-4)


def start_torchrun(cache: Path, words: list[str]) -> subprocess.Popen[str]:
    command = [str(Path(sys.executable).with_name("torchrun")), "--standalone"]
    return subprocess.Popen(
        [*command, "--nproc-per-node", str(WORLD), str(EXAMPLE), *words],
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def read_steps(lines: list[str]) -> dict[int, tuple[float, str]]:
    """Return loss and batch by step, of what the example has printed."""
    found = [re.match(r" *(\d+) +([\d.]+) +\d+ +([\da-f]+) ", line) for line in lines]
    return {int(m[1]): (float(m[2]), m[3]) for m in found if m}


@pytest.fixture(scope="module")
def undisturbed(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return train(pool, tmp_path_factory.mktemp("whole"), "--pp", "2", "--steps", "7")


# Two starts of the example, which compile the planner for the test's own cache.
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(3))
def test_a_rank_is_killed_at_any_step_and_the_job_goes_on_on_the_other_layout(
    undisturbed: list[dict[str, Any]], tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    moment, victim = draw.randrange(5), draw.randrange(WORLD)
    words = ["--checkpoints", str(tmp_path / "saved"), "--save-every", "1", "--steps", "7"]
    job = start_torchrun(tmp_path, [*words, "--pp", "2"])
    assert job.stdout is not None
    before: list[str] = []
    for line in job.stdout:
        before.append(line)
        if moment in read_steps(before):
            break
    workers = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    assert len(workers) == WORLD
    os.kill(int(workers[victim]), signal.SIGKILL)
    before += job.stdout.readlines()
    assert job.wait(600) != 0
    again = start_torchrun(tmp_path, [*words, "--pp", "4", "--json"])
    output, _ = again.communicate(timeout=600)
    assert again.returncode == 0
    lines = output.splitlines()
    found = read_steps(before), read_steps(lines)
    first = min(found[1])
    assert max(found[0]) + 1 >= first >= moment
    assert sorted(found[1]) == list(range(first, 7))
    for steps in found:
        for step, (loss, batch) in steps.items():
            assert batch == undisturbed[step]["batch"]
            assert loss == pytest.approx(undisturbed[step]["loss"], abs=1e-4)
    last = json.loads(lines[-1])["loss_last"]
    assert last == pytest.approx(undisturbed[-1]["loss"], abs=1e-4)
