"""Two ranks under DDP have the gradients of one process, step by step."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from counterpoise.tools.demo.data import ensure_demo_data
from tests.forking.popen import run
from tests.forking.ranks import torchrun

pytestmark = pytest.mark.slow

TRAINER = Path(__file__).with_name("ddp_trainer.py")
SAMPLES = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where one process and two ranks have left what they kept."""
    out = tmp_path_factory.mktemp("ddp")
    shards = ensure_demo_data(out / "data", samples=SAMPLES, shards=2)
    words = [str(TRAINER), shards, str(out)]
    alone = run([sys.executable, *words])
    ranks = torchrun(["--standalone", "--nproc-per-node", "2", *words])
    assert (alone.returncode, ranks.returncode) == (0, 0), alone.stderr + ranks.stderr
    return out


@pytest.fixture(params=["token", "sample"])
def runs(request: pytest.FixtureRequest, folder: Path) -> Any:
    """What one process and what each of two ranks kept of every step."""
    return [torch.load(folder / f"{request.param}-{of}.pt") for of in ("1-0", "2-0", "2-1")]


def test_the_ranks_share_out_the_global_batches_of_one_process(runs: Any) -> None:
    alone, *ranks = runs
    together = [sorted([*a["keys"], *b["keys"]]) for a, b in zip(*ranks, strict=True)]
    assert together == [step["keys"] for step in alone]
    assert sum(map(len, together)) == SAMPLES


def test_microbatches_and_label_counts_differ_between_ranks(runs: Any) -> None:
    _, first, second = runs
    for a, b in zip(first, second, strict=True):
        assert len(a["counts"]) == len(b["counts"])
    assert any(a["counts"] != b["counts"] for a, b in zip(first, second, strict=True))
    assert len({count for step in first + second for count in step["counts"]}) > 2


def test_gradients_of_every_step_equal_those_of_one_process(runs: Any) -> None:
    alone, *ranks = runs
    for rank in ranks:
        for ours, theirs in zip(rank, alone, strict=True):
            for a, b in zip(ours["gradients"], theirs["gradients"], strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
