"""Stages that are made alone: what they are loaded from, drawn as, checked on, and need."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from counterpoise.sched.planners.stage_split import make_split
from counterpoise.sched.runtime import adapt
from counterpoise.sched.runtime.families.small import small_config
from counterpoise.sched.runtime.model_state import HeldModules
from counterpoise.sched.runtime.pretrained.loading import INDEX, set_weights
from counterpoise.sched.runtime.pretrained.making import find_precisions, materialise
from tests.sched.runtime.families import memory
from tests.sched.runtime.families.alone import empty, saved, train_on
from tests.sched.runtime.families.models import IMAGES, TEXT, make
from tests.sched.runtime.families.test_adapting import FAULTS
from tests.sched.runtime.families.test_training import worst
from tests.sched.runtime.families.training import Setting

PLAN = make_split((1, 3))
FAMILIES = ("llama", "gemma2", "qwen2_moe", "qwen2_5_vl")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    "kind",
    [
        "granite",
        *(
            pytest.param(one, marks=pytest.mark.long)
            for one in ("llama", "gemma3_text", "cohere", "gpt2", "qwen2_moe", "qwen2_5_vl")
        ),
    ],
)
def test_faults_are_found_on_a_small_model_of_the_class(monkeypatch, kind: str, fault: str) -> None:
    found = adapt(empty(kind))
    plant, named = FAULTS[fault]
    plant(monkeypatch)
    with pytest.raises(ValueError, match=named):
        found.split(PLAN)


def test_a_small_config_keeps_what_forward_follows_from() -> None:
    config = transformers.Gemma3TextConfig(final_logit_softcapping=30.0, pad_token_id=200_000)
    small = small_config(config)
    assert small.final_logit_softcapping == 30.0
    assert set(small.layer_types) == set(config.layer_types)
    assert (small.num_hidden_layers, small.hidden_size, small.vocab_size) == (6, 512, 512)
    assert (small.head_dim, small.pad_token_id) == (256, None)
    assert config.num_hidden_layers == 26


def test_a_config_or_nothing_is_what_checks_a_model_without_memory() -> None:
    model = empty("llama")
    small = make("llama", num_hidden_layers=2).config
    assert len(adapt(model).split(PLAN, check=small)) == 2
    assert len(adapt(model).split(PLAN, check=False)) == 2
    with pytest.raises(ValueError, match=r"cannot make a small Llama.*check=False"):
        adapt(model).split(PLAN, check={"input_ids": torch.zeros(1, 2).long()})


@pytest.mark.long
@pytest.mark.parametrize("kind", [*TEXT, *IMAGES])
def test_configs_as_large_as_released_ones_have_small_ones(kind: str) -> None:
    more = {"num_experts_per_tok": 2} if kind == "deepseek_v2" else {}
    config = transformers.AutoConfig.for_model(kind, **more)
    auto = "ImageTextToText" if kind in IMAGES else "CausalLM"
    with torch.device("meta"):
        model = getattr(transformers, f"AutoModelFor{auto}").from_config(config)
    assert len(adapt(model).split(adapt(model).plan(2))) == 2


def load(folder: Path, kind: str = "llama", *, tied: bool = True, seed: int | None = None) -> Any:
    """Load a model's only stage, and return it."""
    found = adapt(empty(kind, tied=tied))
    plan = found.plan(1)
    (stage,) = found.split(plan, check=False)
    units = {name: found.model.get_submodule(name) for name in found.modules(plan)[0]}
    materialise(units, torch.device("cpu"), find_precisions(found.model, found.dtype))
    random = torch.get_rng_state()
    set_weights(found.model, HeldModules({0: stage}), units, str(folder) if seed is None else seed)
    assert torch.equal(torch.get_rng_state(), random)
    return stage


def in_one(folder: Path) -> Path:
    """Return the only file of a folder of one, in place of several and an index."""
    tensors = {n: t for path in folder.glob("*.safetensors") for n, t in load_file(path).items()}
    for path in [*folder.glob("*.safetensors"), folder / INDEX]:
        path.unlink()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder / "model.safetensors"


def change(**changes: torch.Tensor | None) -> Callable[[Path], object]:
    """Return what puts other tensors into a folder's files, or takes some out."""

    def work(folder: Path) -> None:
        path = in_one(folder)
        new = {name.replace("__", "."): value for name, value in changes.items()}
        tensors = {n: t for n, t in {**load_file(path), **new}.items() if t is not None}
        save_file(tensors, path, metadata={"format": "pt"})

    return work


def first_file(folder: Path) -> Path:
    return min(folder.glob("model-*"))


def cut(folder: Path) -> None:
    path = first_file(folder)
    path.write_bytes(path.read_bytes()[:-100])


def forget(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    name = min(index["weight_map"])
    index["weight_map"][name] = max(index["weight_map"].values())
    (folder / INDEX).write_text(json.dumps(index))


NORM = "model__norm__weight"
WORDS = torch.zeros(64, 16)
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing names": (change(**{NORM: None}), r"has no model.norm.weight, which the model has;"),
    "other names": (change(model__mine=WORDS), r"has model.mine, which the model has not; make"),
    "another shape": (change(**{NORM: WORDS[0, :8]}), r"norm.weight of shape \(8,\), .* \(16,\)"),
    "whole numbers": (change(**{NORM: WORDS[0].to(torch.int8)}), r"norm.weight as I8, the model"),
    "two tied values": (change(lm_head__weight=WORDS), r"two values of .*tie_word_embeddings=Fal"),
    "a file is missing": (lambda f: first_file(f).unlink(), r"names model-00001\S+, which"),
    "a file is cut off": (cut, r"model-00001\S+ is damaged or cut off \(.*copy it again"),
    "no such tensor": (forget, r"cannot give \S+ \(File does not contain tensor"),
    "a broken index": (lambda f: (f / INDEX).write_text("{}"), r"is no index of safetensors"),
    "no files": (lambda f: in_one(f).unlink(), "has neither model.safetensors.index.json nor"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_files_of_another_model_and_damaged_ones_are_refused_in_one_line(tmp_path, fault) -> None:
    saved(tmp_path, "llama")
    spoil, message = REFUSED[fault]
    spoil(tmp_path)
    with pytest.raises((ValueError, OSError), match=message) as raised:
        load(tmp_path)
    assert "\n" not in str(raised.value)


def test_an_expert_that_is_missing_is_another_shape(tmp_path) -> None:
    saved(tmp_path, "qwen2_moe")
    change(model__layers__0__mlp__experts__3__down_proj__weight=None)(tmp_path)
    with pytest.raises(ValueError, match=r"experts.down_proj of shape \(3, 16, 16\), .*\(4, 16"):
        load(tmp_path, "qwen2_moe")


def test_other_precisions_and_a_name_of_either_end_are_taken(tmp_path) -> None:
    model, folder = make("llama"), Path(saved(tmp_path, "llama"))
    words = model.lm_head.weight.detach().bfloat16()
    change(model__embed_tokens__weight=None, lm_head__weight=words)(folder)
    stage = load(folder)
    assert stage.lm_head.weight is stage.model.embed_tokens.weight
    assert torch.equal(stage.lm_head.weight, words.float())


def test_what_transformers_keeps_in_single_precision_stays_so(tmp_path) -> None:
    model = make("deepseek_v3").bfloat16()
    model.save_pretrained(tmp_path)
    kind = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        state = load(tmp_path, "deepseek_v3").state_dict()
    finally:
        torch.set_default_dtype(kind)
    wanted = type(model).from_pretrained(tmp_path, dtype=torch.bfloat16).state_dict()
    assert {state[name].dtype for name in wanted} == {torch.bfloat16, torch.float32}
    assert all(state[n].dtype == t.dtype and torch.equal(state[n], t) for n, t in wanted.items())


def test_weights_are_given_to_models_without_any(tmp_path) -> None:
    mesh: Any = {"pp": SimpleNamespace(size=lambda: 1, get_local_rank=lambda: 0)}
    with pytest.raises(ValueError, match="on the meta device; give weights="):
        adapt(empty("llama")).pipeline(mesh, "1f1b", check=False)
    with pytest.raises(ValueError, match=r"has weights; make it under torch.device"):
        adapt(make("llama")).pipeline(mesh, "1f1b", check=False, weights=3)


def test_weights_are_drawn_as_the_class_does_from_the_seed_alone() -> None:
    stages = [load(Path(), "gpt2", tied=tied, seed=5) for tied in (True, False)]
    tied, untied = (stage.state_dict() for stage in stages)
    assert {n for n in tied if not torch.equal(tied[n], untied[n])} == {"lm_head.weight"}
    scaled = tied["transformer.h.0.mlp.c_proj.weight"].std() / tied["transformer.wte.weight"].std()
    assert 0.2 < scaled < 0.6  # GPT-2 divides by the root of twice its layers
    assert tied["transformer.ln_f.weight"].eq(1).all()
    other = load(Path(), "gpt2", seed=6).state_dict()
    assert not torch.equal(other["transformer.wte.weight"], tied["transformer.wte.weight"])


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("schedule", ["1f1b", "zbv", "1f1b-alg2"])
@pytest.mark.parametrize("kind", FAMILIES)
def test_four_families_train_in_every_layout(pool, tmp_path, kind, schedule, ranks) -> None:
    for tied in (True, False):
        folder = saved(tmp_path / f"{tied}", kind, tied=tied)
        assert not worst(pool, Setting(kind, schedule, ranks, tied=tied, folder=folder))


@pytest.mark.long
@pytest.mark.parametrize("kind", sorted({*TEXT, *IMAGES} - {*FAMILIES}))
def test_every_family_is_made_and_saved_alone(pool, tmp_path, kind) -> None:
    setting = Setting(kind, "1f1b-alg2", 2, folder=saved(tmp_path / "model", kind))
    assert not worst(pool, setting)


@pytest.mark.long
def test_optimizers_go_on_in_another_layout(pool, tmp_path) -> None:
    folder = str(tmp_path / "step-1")
    before = pool.run(train_on, Setting("gemma2", "1f1b-alg2", 2), 7, folder, 0)[0]
    after = pool.run(train_on, Setting("gemma2", "zbv", 2), 8, folder, 1)[0]
    assert after == pytest.approx(before[1:], rel=1e-5)


@pytest.mark.long
def test_encoders_of_units_are_made_alone(pool, tmp_path) -> None:
    folder = saved(tmp_path / "model", "qwen2_5_vl")
    assert not worst(pool, Setting("qwen2_5_vl", "1f1b", units=True, folder=folder))


@pytest.mark.long
@pytest.mark.parametrize("schedule", ["1f1b", "1f1b-alg2"])
@pytest.mark.parametrize("kind", ["llama", "qwen2_moe"])
def test_a_rank_needs_its_own_part_and_a_file(tmp_path, kind: str, schedule: str) -> None:
    model = transformers.AutoModelForCausalLM.from_config(memory.config_of(kind))
    model.save_pretrained(tmp_path / "model", max_shard_size=memory.SHARD)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    given = ["--nproc-per-node=2", memory.__file__, str(tmp_path), kind, schedule]
    # so that what is freed is given back to the system
    paths = os.pathsep.join(filter(None, sys.path))
    env = {**os.environ, "PYTHONPATH": paths, "MALLOC_MMAP_THRESHOLD_": "65536"}
    subprocess.run([*torchrun, *given], check=True, cwd=tmp_path, env=env)
    for path in tmp_path.glob("?.json"):
        found = json.loads(path.read_text())
        print(found)
        assert found["load"] <= 1.2 * found["share"] + memory.SHARD
        assert found["save"] <= 0.2 * found["share"] + memory.SHARD
    again = type(model).from_pretrained(tmp_path / "saved").state_dict()
    assert all(torch.equal(value, again[name]) for name, value in model.state_dict().items())


def test_only_floating_point_tensors_take_another_precision_and_names_have_no_gap() -> None:
    with torch.device("meta"):
        norm = torch.nn.LayerNorm(4, dtype=torch.bfloat16)
        norm.register_buffer("count", torch.zeros(1, dtype=torch.int64))
    materialise({"model.norm": norm}, torch.device("cpu"), {r"norm\.weight|count": torch.float32})
    assert (norm.weight.dtype, norm.bias.dtype) == (torch.float32, torch.bfloat16)
    assert norm.count.dtype == torch.int64
