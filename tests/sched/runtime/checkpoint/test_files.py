"""Checkpoints of real processes: whole or absent, and any layout goes on as if nothing had been."""

import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from counterpoise.sched.runtime import Pipeline, load_checkpoint, newest_checkpoint
from tests.sched.runtime.cases import mean_loss
from tests.sched.runtime.models import HIDDEN, make_stages
from tests.sched.runtime.pool import WORLD, make_mesh
from tests.tars import write_tar

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[4] / "examples" / "train_pipeline.py"
LINE = re.compile(r"step (\d+): loss ([\d.]+), gradient norm ([\d.]+), (32 samples \(.*\))")
STEPS = 5
SCHEDULES = ("1f1b", "1f1b-alg2", "v-half-alg2", "zbv")


def load_example(path: Path) -> Any:
    spec = spec_from_file_location("train_pipeline", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_example(_rank: int, path: Path, words: list[str], until: int | None = None) -> list[str]:
    """Return the lines of the example on all processes of the pool, or the first of them."""
    # The loader's workers are forked, as torchrun's processes would; the pool itself is spawned.
    multiprocessing.set_start_method("fork", force=True)
    example = load_example(path)
    given: Namespace = example.read_arguments(words)
    lines = example.train(make_mesh(given.pp), given)
    found = list(islice(lines, until))
    # A job that ends early saves nothing more.
    lines.close()
    return found


def read_lines(lines: list[str]) -> list[tuple[int, float, float, str]]:
    found = [LINE.fullmatch(line) for line in lines]
    return [(int(m[1]), float(m[2]), float(m[3]), m[4]) for m in found if m]


def train(pool, *words: str, until: int | None = None) -> list[tuple[int, float, float, str]]:
    """Return what all ranks say of each step, which is the same."""
    answers = pool.run(run_example, EXAMPLE, list(words), until)
    assert all(answer == answers[0] for answer in answers)
    return read_lines(answers[0])


def worst(found, expected) -> float:
    """Return the largest difference of losses; steps and samples must be the same."""
    assert [(line[0], line[3]) for line in found] == [(line[0], line[3]) for line in expected]
    return max(abs(one[1] - other[1]) for one, other in zip(found, expected, strict=True))


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> str:
    """Texts of a few words that often follow each other."""
    folder = tmp_path_factory.mktemp("text")
    draw = random.Random(5)
    texts = {}
    for number in range(96):
        words = [draw.randrange(50)]
        for _ in range(draw.randint(4, 60)):
            words.append((3 * words[-1] + draw.randrange(2)) % 50)
        text = json.dumps({"document": " ".join(map(str, words))})
        texts[f"t{number:03}.json"] = text.encode()
    return str(write_tar(folder / "text.tar", texts))


@pytest.fixture(scope="module")
def expected(pool, shards):
    """Steps of one pipeline, over more than an epoch, that nothing interrupts."""
    return train(pool, "--data", shards, "--schedule", "1f1b", "--steps", str(STEPS))


@pytest.mark.parametrize(
    ("before", "pp", "after", "then"),
    [
        ("v-half-alg2", 4, "1f1b", 2),
        pytest.param("1f1b", 2, "1f1b-alg2", 4, marks=pytest.mark.long),
        pytest.param("zbv", 4, "v-half-alg2", 2, marks=pytest.mark.long),
    ],
)
def test_a_stopped_job_goes_on_with_another_schedule_on_another_layout(
    pool, shards, expected, tmp_path, before, pp, after, then
) -> None:
    words = ["--data", shards, "--checkpoints", str(tmp_path)]
    words += ["--save-every", "2", "--steps", str(STEPS)]
    assert expected[-1][1] < expected[0][1] - 1
    first = train(pool, *words, "--schedule", before, "--pp", str(pp), until=4)
    assert worst(first, expected[:4]) <= 1e-4
    # Stopped after its fourth step, before that was saved; and while it saved, once.
    assert {path.name for path in tmp_path.iterdir()} == {"step-2"}
    (tmp_path / "step-4.partial").mkdir()
    rest = train(pool, *words, "--schedule", after, "--pp", str(then))
    assert worst(rest, expected[2:]) <= 1e-4
    assert {path.name for path in tmp_path.iterdir()} == {"step-2", "step-4"}


def start_torchrun(words: Sequence[str]) -> subprocess.Popen[str]:
    command = [str(Path(sys.executable).with_name("torchrun")), "--standalone"]
    command += ["--nproc-per-node", "4", str(EXAMPLE), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


@pytest.fixture(scope="module")
def real(pool, data) -> tuple[str, list[tuple[int, float, float, str]]]:
    """The pattern of the real shards, and seven steps over them that nothing interrupts."""
    pattern = str(data / "shards" / "*.tar")
    return pattern, train(pool, "--data", pattern, "--schedule", "1f1b", "--steps", "7")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_a_rank_is_killed_at_any_step_and_the_job_goes_on_on_another_layout(
    real, tmp_path, seed
) -> None:
    draw, (pattern, expected) = random.Random(seed), real
    words = ["--data", pattern, "--checkpoints", str(tmp_path), "--save-every", "1"]
    words += ["--steps", str(len(expected))]
    layouts = [["--schedule", draw.choice(SCHEDULES), "--pp", pp] for pp in ("4", "2")]
    draw.shuffle(layouts)
    moment = draw.randrange(len(expected) - 1)
    job = start_torchrun([*words, *layouts[0]])
    assert job.stdout is not None
    before = [line for line, _ in zip(job.stdout, range(moment + 1), strict=False)]
    workers = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    assert len(workers) == 4
    os.kill(int(draw.choice(workers)), signal.SIGKILL)
    before += job.stdout.readlines()
    assert job.wait(600) != 0

    again = start_torchrun([*words, *layouts[1]])
    output, _ = again.communicate(timeout=600)
    assert again.returncode == 0
    found = read_lines([*map(str.rstrip, before)]), read_lines(output.splitlines())
    assert found[0][-1][0] + 1 >= found[1][0][0] > moment - 1
    assert worst(found[0], expected[: len(found[0])]) <= 1e-4
    assert worst(found[1], expected[found[1][0][0] :]) <= 1e-4


@pytest.mark.long
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("pp", ["4", "2"])
def test_every_schedule_learns_the_same_from_the_real_shards(pool, data, schedule, pp) -> None:
    pattern = str(data / "shards" / "*.tar")
    words = ("--data", pattern, "--steps", "6")
    reference = train(pool, *words, "--schedule", "1f1b")
    found = train(pool, *words, "--schedule", schedule, "--pp", pp)
    assert worst(found, reference) <= 1e-4
    assert found[-1][1] < found[0][1]


def save_unclear(_rank: int) -> str:
    """Return the error for stages that all call their parameters alike."""
    mesh = make_mesh(WORLD)
    rank = mesh["pp"].get_local_rank()
    stages = make_stages(WORLD)
    pipe = Pipeline(
        mesh, schedule="1f1b", stages={rank: stages[rank].float()}, hidden=HIDDEN, loss=mean_loss
    )
    try:
        with pytest.raises(ValueError, match="name a stage's tensors as in the whole") as found:
            pipe.state()
    finally:
        pipe.close()
    return str(found.value)


def test_stages_with_the_same_names_are_refused_before_anything_is_written(pool) -> None:
    for text in pool.run(save_unclear):
        assert "several ranks have a parameter called 0." in text


def test_what_is_no_checkpoint_is_said_so(tmp_path) -> None:
    assert newest_checkpoint(tmp_path) is None
    pipe: Any = None
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        load_checkpoint(tmp_path, pipe)
