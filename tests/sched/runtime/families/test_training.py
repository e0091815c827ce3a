"""Adapted models of every family train as their own forward does, on four processes."""

import importlib.util
import multiprocessing
from pathlib import Path

import pytest

from tests.sched.runtime.families.models import IMAGES, TEXT
from tests.sched.runtime.families.training import Setting, train
from tests.sched.runtime.pool import Pool, make_mesh

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[4] / "examples" / "hf_pipeline.py"
TOLERANCE = 1e-5
SCHEDULES = ("1f1b", "zbv", "1f1b-alg2")
# What differs most: windows by type of layer and a softcap, learned positions, a loss of experts,
# images for several layers. The example has a Llama, and images in patches.
COVERING = (
    Setting("gemma3_text", "1f1b-alg2", 2, tied=True, steps=2),
    Setting("gpt2", "zbv", 2, tied=True, steps=2),
    Setting("qwen2_moe", "1f1b-alg2", 4, tied=False, recompute=True, steps=2),
    Setting("qwen3_vl", "1f1b", 4, tied=True, steps=2),
)


def worst(pool: Pool, setting: Setting) -> dict[str, float]:
    """Return what is off by more than rounding, on any process."""
    return {
        name: error
        for found in pool.run(train, setting)
        for name, error in found.items()
        if not error <= TOLERANCE
    }


@pytest.mark.parametrize("setting", COVERING, ids=str)
def test_what_differs_most_between_families_is_trained_rightly(pool, setting) -> None:
    assert not worst(pool, setting)


def run_example(_rank: int, path: Path, kind: str, steps: int) -> list[float]:
    """Return the losses of examples/hf_pipeline.py."""
    # The loader's workers are forked, as torchrun's processes would; the pool itself is spawned.
    multiprocessing.set_start_method("fork", force=True)
    spec = importlib.util.spec_from_file_location("hf_pipeline", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return [*example.train(make_mesh(2), kind, steps)]


def test_the_example_learns_and_fits_on_a_page(pool) -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 100
    for kind in ("llama", "qwen2_5_vl"):
        first, *others = pool.run(run_example, EXAMPLE, kind, 3)
        assert others == [first] * 3
        assert first[-1] < first[0]


@pytest.mark.long
@pytest.mark.parametrize("kind", IMAGES)
def test_encoders_train_on_ranks_of_their_own(pool, kind) -> None:
    assert not worst(pool, Setting(kind, "1f1b", units=True))


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", [*TEXT, *IMAGES])
def test_every_family_trains_as_its_forward_does(pool, kind, schedule, ranks) -> None:
    for tied in (True, False):
        for recompute in (True, False):
            setting = Setting(kind, schedule, ranks, tied=tied, recompute=recompute)
            assert not worst(pool, setting), setting
