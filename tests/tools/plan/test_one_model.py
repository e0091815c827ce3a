"""All planners price the same job alike: memory to the byte, and the same step."""

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from counterpoise.sched.planners.orchestration.models import make_modules
from counterpoise.sched.planners.orchestration.units import OrchestrationProblem, Unit, module_bytes
from counterpoise.sched.planners.recompute import (
    Policy,
    exact_policies,
    modelled_stages,
    plan_recompute,
)
from counterpoise.sched.planners.stage_split import step_timer
from counterpoise.sched.shapes import (
    DEVICES,
    Amounts,
    Device,
    Model,
    ParallelLayout,
    SubModel,
    TransformerLayer,
    Vocabulary,
    layer_costs,
    memory,
    read_device,
    read_model,
    step,
)
from counterpoise.tools.plan.job import command
from tests.sched.bubble_filling.test_model_jobs import filling_costs_what_shapes_say

NAME, TILES, TOKENS, MICROBATCHES = "internvit-6b+internlm2-20b", 9, 4096, 32
LAYOUT = "tp=8,pp=4,dp=4"
JOB = ("--model", NAME, "--device", "a100", "--parallel")


def report(*arguments: str) -> dict[str, Any]:
    words = ["job", "--only", *arguments, "--json"]
    result = CliRunner().invoke(command, words, catch_exceptions=False)
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def test_one_job_is_priced_alike_by_all_commands() -> None:
    """InternViT-6B + InternLM2-20B, TP 8, PP 4, DP 4, 32 microbatches of 9 tiles, 4096 tokens."""
    model, device = read_model(NAME), read_device("a100")
    split = report("partition", *JOB, LAYOUT)
    stages = split["layers_per_stage"]
    layout = ParallelLayout(tp=8, pp=4, dp=4, microbatches=MICROBATCHES, stages=tuple(stages))
    amounts = model.amounts(tiles=TILES, tokens=TOKENS)
    sizes = [one.total for one in memory(model, device, layout, amounts)]
    seconds = step(model, device, layout, amounts).total_ns / 1e9
    assert (split["memory_bytes"], split["seconds_per_step"]) == (sizes, seconds)

    cut = "/".join(map(str, stages))
    kept = report("recompute", *JOB, f"{LAYOUT},stages={cut}")
    assert [one["predicted_bytes"] for one in kept["stages"]] == sizes
    assert kept["seconds_per_step"]["plan"] == seconds

    modules_cost_what_shapes_say(model, device, layout, amounts)
    filling_costs_what_shapes_say(model, device, layout, amounts)


def modules_cost_what_shapes_say(
    model: Model, device: Device, layout: ParallelLayout, amounts: Amounts
) -> None:
    """Check the modules of `--only orchestrate`, which have GPUs of their own: the same layers.

    It divides a whole module by TP, which leaves a copy of each vector, and takes equal layers, so
    its bytes are those of shapes for a stage on one GPU, a backward's working set apart.
    """
    modules = make_modules(model, device, amounts)
    encoder, backbone = modules
    layers = layer_costs(model, device, layout, amounts)
    for module, kind in ((encoder, "encoder"), (backbone, "language")):
        own = [one for one in layers if one.kind == kind]
        assert module.forward_ns[layout.tp] == sum(one.forward_ns for one in own)
        assert module.backward_ns[layout.tp] == sum(one.backward_ns for one in own)
    problem = OrchestrationProblem(modules, 64, 4 * layout.dp, 2**50)
    found = module_bytes(problem, (Unit(dp=layout.dp), Unit(dp=layout.dp)))
    # 1F1B over two stages: the encoder keeps two microbatches, the language model one.
    cut = tuple(module.layers for module in modules)
    both = ParallelLayout(pp=2, dp=layout.dp, microbatches=4, stages=cut, prefetch=0)
    expected = memory(model, device, both, amounts)
    assert found == tuple(one.total - one.working for one in expected)


LAYER = TransformerLayer(256, 640, 3, 128, causal=True)
TOWER = SubModel(
    "vision", "encoder", (TransformerLayer(128),) * 6, unit="tiles", unit_tokens=64,
    handed_tokens=16, projector=128 * 256,
)  # fmt: skip
SMALL = Model(
    "small", (TOWER, SubModel("language", "language", (LAYER,) * 10, Vocabulary(256, 4000)))
)
CHUNKS = {"1f1b": 1, "gpipe": 1, "zb-h1": 1, "interleaved": 2, "zbv": 2, "v-half": 2}


def random_layout(seed: int) -> tuple[ParallelLayout, dict[str, int]]:
    """Return a layout of 16 layers, and a microbatch."""
    draw = random.Random(seed)
    name = draw.choice([*CHUNKS])
    ranks, chunks = draw.randint(2, 4), CHUNKS[name]
    count = ranks * chunks
    cuts = [0, *sorted(draw.sample(range(1, 16), count - 1)), 16]
    stages = tuple(b - a for a, b in pairwise(cuts))
    some = tuple(tuple(at for at in range(size) if draw.random() < 0.4) for size in stages)
    layout = ParallelLayout(
        tp=draw.choice([1, 2, 4, 8]), pp=ranks, dp=draw.randint(1, 5), cp=draw.choice([1, 2]),
        vpp=chunks, microbatches=ranks * draw.randint(1, 3), schedule=name, stages=stages,
        recompute=draw.choice(["none", "all", some]), zero=draw.randint(0, 3),
        sequence_parallel=draw.random() < 0.7, overlap=draw.random() < 0.5,
    )  # fmt: skip
    return layout, SMALL.amounts(tiles=draw.randint(0, 9), tokens=draw.randint(1, 900))


def test_random_layouts_are_priced_alike() -> None:
    """All planners, formula and simulation, where they model the same: 200 layouts."""
    device: Device = DEVICES["h200"]
    planned = 0
    for seed in range(200):
        layout, amounts = random_layout(seed)
        sizes = tuple(one.total for one in memory(SMALL, device, layout, amounts))
        found = step(SMALL, device, layout, amounts)
        assert found.memory_bytes == sizes
        layers = layer_costs(SMALL, device, layout, amounts)
        assert step_timer(layers, device, layout)(layout.stages) == found.total_ns
        if layout.sequence_parallel and layout.cp == 1:
            modules_cost_what_shapes_say(SMALL, device, layout, amounts)
        if layout.schedule == "1f1b" and amounts["tiles"]:
            equal = replace(layout, pp=seed % 2 * 3 + 2, stages=(), recompute="none")
            if layout.recompute == "all":
                equal = replace(equal, recompute="all")
            filling_costs_what_shapes_say(SMALL, device, equal, amounts)
        if layout.vpp == 1:
            planned += 1
            policies = [Policy(tuple(layout.recomputed(at)), 0) for at in range(layout.pp)]
            exact = exact_policies(layers, layout, policies)
            assert tuple(one.predicted_bytes for one in exact) == sizes
            cut, saving = modelled_stages(layers, layout)
            most = plan_recompute(cut, saving, max(sizes) * 2)
            assert all(one.predicted_bytes <= 2 * max(sizes) for one in most)
    assert planned > 60


CONFIG = {
    "model_type": "llava",
    "text_config": {
        "model_type": "qwen2", "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 6,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
    },
    "vision_config": {
        "model_type": "siglip_vision_model", "hidden_size": 128, "intermediate_size": 512,
        "num_hidden_layers": 4, "image_size": 112, "patch_size": 14,
    },
}  # fmt: skip


def test_a_config_of_ones_own_is_taken_by_all_commands(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    given = ("--model", str(path), "--device", "a100")
    split = report("partition", *given, "--parallel", "pp=2,tp=2")
    assert sum(split["layers_per_stage"]) == 10
    kept = report("recompute", *given, "--parallel", "pp=2")
    assert sum(one["layers"] for one in kept["stages"]) == 10
    units = report("orchestrate", *given, "--gpus", "4", "--samples-per-step", "8")["units"]
    assert {*units} == {"encoder", "backbone"}
