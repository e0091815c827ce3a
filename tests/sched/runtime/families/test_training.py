"""Adapted models of every family train as their own forward does, on four processes."""

import importlib.util
import json
import multiprocessing
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.sched.runtime.families.alone import draw_and_save, refusal, saved
from tests.sched.runtime.families.models import IMAGES, TEXT
from tests.sched.runtime.families.training import Setting, train
from tests.sched.runtime.pool import Pool, make_mesh

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[4] / "examples" / "hf_pipeline.py"
TOLERANCE = 1e-5
# Under autocast, of gradients whose sums are made in another order.
LOW = {torch.bfloat16: 6e-2, torch.float16: 1e-2}
SCHEDULES = ("1f1b", "zbv", "1f1b-alg2")
# What differs most: windows by type of layer and a softcap, learned positions, a loss of experts,
# images for several layers. The example has a Llama, and images in patches.
COVERING = (
    Setting("gemma3_text", "1f1b-alg2", 2, tied=True, steps=2),
    Setting("gpt2", "zbv", 2, tied=True, steps=1),
    Setting("qwen2_moe", "1f1b-alg2", 4, tied=False, recompute=True, steps=1),
    Setting("qwen3_vl", "1f1b", 4, tied=True, steps=1, width=2, pieces=2),
)


def worst(pool: Pool, setting: Setting) -> dict[str, float]:
    """Return what is off by more than rounding, on any process."""
    tolerance = TOLERANCE if setting.autocast is None else LOW[setting.autocast]
    return {
        name: error
        for found in pool.run(train, setting)
        for name, error in found.items()
        if not error <= tolerance
    }


@pytest.mark.parametrize("setting", COVERING, ids=str)
def test_what_differs_most_between_families_is_trained_rightly(pool, setting) -> None:
    assert not worst(pool, setting)


def test_stages_made_alone_train_and_are_saved_as_the_whole_model(pool, tmp_path) -> None:
    # words are tied and divided, and files have the experts one by one
    setting = Setting("qwen2_moe", "1f1b-alg2", 4, tied=True, steps=1)
    assert not worst(pool, replace(setting, folder=saved(tmp_path / "model", "qwen2_moe")))
    names = {path.name for path in tmp_path.glob("model-saved/*")}
    assert {"config.json", "model.safetensors.index.json"} < names


def test_weights_that_are_drawn_are_the_same_in_every_layout(pool, tmp_path) -> None:
    layouts = (("1f1b", 4), ("1f1b-alg2", 2))
    for number, (schedule, ranks) in enumerate(layouts):
        setting = Setting("gemma2", schedule, ranks)
        for ours, theirs in pool.run(draw_and_save, setting, str(tmp_path / f"{number}")):
            assert abs(ours - theirs) <= TOLERANCE * abs(theirs)
    first, *others = (
        {n: t for path in folder.glob("*.safetensors") for n, t in load_file(path).items()}
        for folder in sorted(tmp_path.iterdir())
    )
    for other in others:
        assert first.keys() == other.keys()
        assert all(torch.equal(first[name], other[name]) for name in first)


def test_what_one_process_cannot_load_or_save_all_refuse(pool, tmp_path) -> None:
    setting, out = Setting("qwen2_5_vl", "1f1b", 2), tmp_path / "out"
    folder = saved(tmp_path / "model", "qwen2_5_vl")
    for found in pool.run(refusal, setting, folder, str(out), False):
        assert re.search(r"no rank has model.visual.*not one of text alone", found)
    assert not [*tmp_path.glob("out*")]
    for found in pool.run(refusal, setting, folder, folder):
        assert "model exists; save into a new folder" in found
    index = json.loads((tmp_path / "model/model.safetensors.index.json").read_text())
    # what the last stage alone reads
    (tmp_path / "model" / index["weight_map"]["model.norm.weight"]).write_bytes(b"")
    for found in pool.run(refusal, setting, folder, str(out)):
        assert "is damaged or cut off" in found


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


# docs/pipelines/hf-pipeline.md has a model of text
@pytest.mark.parametrize("kind", [pytest.param("llama", marks=pytest.mark.long), "qwen2_5_vl"])
def test_the_example_learns_and_fits_on_a_page(pool, kind) -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 100
    first, *others = pool.run(run_example, EXAMPLE, kind, 3)
    assert others == [first] * 3
    assert first[-1] < first[0]


# Its tower of three layers is cut inside of one.
CUTS = [(k, *c) for k in ("qwen2_vl", "qwen2_5_vl") for c in ((2, 1), (1, 2), (2, 2))]
CUTS += [("qwen3_vl", 1, 2), ("qwen3_vl", 2, 2)]


@pytest.mark.long
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_towers_train_over_ranks_and_in_pieces(pool, cut, schedule) -> None:
    kind, width, pieces = cut
    setting = Setting(kind, schedule, 2, tied=False, width=width, pieces=pieces)
    assert not worst(pool, setting)


@pytest.mark.parametrize("kind", [pytest.param("llava", marks=pytest.mark.long), "qwen3_vl"])
def test_images_are_trained_under_autocast_as_by_the_models_own_forward(pool, kind) -> None:
    assert not worst(pool, Setting(kind, steps=1, autocast=torch.bfloat16))


@pytest.mark.long
@pytest.mark.parametrize("precision", LOW, ids=str)
@pytest.mark.parametrize("kind", [*TEXT, *IMAGES])
def test_every_family_is_trained_under_autocast(pool, kind, precision) -> None:
    for schedule in SCHEDULES:
        assert not worst(pool, Setting(kind, schedule, steps=1, autocast=precision)), schedule
    if kind in IMAGES:
        assert not worst(pool, Setting(kind, units=True, steps=1, autocast=precision))


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
