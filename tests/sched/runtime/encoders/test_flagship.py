"""The vision-language example goes on, on another layout, as if nothing had been."""

import multiprocessing
import os
from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.sched.runtime.checkpoint.test_files import load_example
from tests.sched.runtime.pool import Pool, make_mesh

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
