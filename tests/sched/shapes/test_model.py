"""Work, times and memory of layers and layouts, by hand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from counterpoise.sched.shapes import (
    DEVICES,
    Device,
    Model,
    ParallelLayout,
    SubModel,
    TransformerLayer,
    Vocabulary,
    in_flight,
    layer_costs,
    memory,
    optimizer_ns,
    output_layer,
    read_config,
    read_device,
    read_model,
    step,
    step_end,
)

LAYER = TransformerLayer(64, 160, 3, 32, causal=True)
TEXT = SubModel("language", "language", (LAYER,) * 8, Vocabulary(64, 1000))
VISION = SubModel(
    "vision", "encoder", (TransformerLayer(32),) * 4, unit="tiles", unit_tokens=16, handed_tokens=4
)
MODEL = Model("small", (VISION, TEXT), (("tokens", 100), ("tiles", 2)))
AMOUNTS = MODEL.amounts()


def test_operations_are_those_of_the_formula() -> None:
    tokens, hidden = 2048, 3072
    per_layer = 24 * tokens * hidden**2 + 4 * tokens**2 * hidden
    assert TransformerLayer(hidden).forward_flops(tokens=tokens, pairs=tokens**2) == per_layer
    assert Vocabulary(hidden, 1000).forward_flops(tokens) == 2 * tokens * hidden * 1000
    # Llama 3 8B, norms left out.
    assert TransformerLayer(4096, 14336, 3, 2048).parameters == 218103808
    causal = TransformerLayer(hidden, causal=True)
    assert causal.attention_flops(100) * 2 == TransformerLayer(hidden).attention_flops(100)


def test_only_active_experts_work() -> None:
    sparse = TransformerLayer(64, 160, 3, experts=8, active=2)
    dense = TransformerLayer(64, 320, 3)
    router = 64 * 8
    assert sparse.active_weights == dense.weights + router
    assert sparse.weights == dense.attention + 4 * (dense.weights - dense.attention) + router


def test_the_layers_take_together_what_the_model_takes() -> None:
    device, amounts = Device(encoder_percent=50), MODEL.amounts(tokens=10**5, tiles=10**5)
    layers = layer_costs(MODEL, device, ParallelLayout(), amounts)
    total = sum(one.forward_ns for one in layers)
    assert total == pytest.approx(device.compute_ns(MODEL.forward_flops(amounts)), rel=0.01)
    assert sum(one.parameters for one in layers) == MODEL.parameters
    for one in layers[:-1]:
        # Attention's gradients are all of inputs.
        assert one.weight_ns < one.backward_ns - one.weight_ns
        assert one.backward_ns == pytest.approx(2 * one.forward_ns, abs=4)


def test_tensor_parallel_ranks_share_work_and_pay_for_it() -> None:
    model = read_model("llama3-8b")
    times = {
        tp: layer_costs(model, Device(), ParallelLayout(tp=tp), model.amounts())[3].forward_ns
        for tp in (1, 4, 16)
    }
    assert times[1] / 4 < times[4] < times[1]
    # Across nodes the collectives cost more than sharing saves.
    assert times[16] > times[4]


def test_activations_are_those_of_korthikanti() -> None:
    """Equation 2 with fused attention and no dropout: 8 h whole, 24 h divided over TP."""
    layer = SubModel("language", "language", (TransformerLayer(64),))
    model = Model("gpt", (layer,))
    for tp, parallel, divided in ((1, False, 32), (4, False, 8 + 24 / 4), (4, True, 32 / 4)):
        layout = ParallelLayout(tp=tp, sequence_parallel=parallel)
        [one] = layer_costs(model, Device(), layout, {"tokens": 100})
        assert one.activation_bytes == divided * 100 * 64


def test_frozen_layers_keep_what_gradients_pass_through() -> None:
    whole = layer_costs(MODEL, Device(), ParallelLayout(), AMOUNTS)
    frozen = layer_costs(MODEL.freeze("vision", "language"), Device(), ParallelLayout(), AMOUNTS)
    assert all(one.backward_ns == one.activation_bytes == one.trained == 0 for one in frozen)
    trained = replace(VISION, projector=10)
    some = replace(MODEL, parts=(trained, TEXT)).freeze("vision", "language")
    layers = layer_costs(some, Device(), ParallelLayout(), AMOUNTS)
    assert layers[0].activation_bytes == layers[0].recompute_ns == 0
    assert layers[3].trained == 10
    for one, before in zip(layers[4:], whole[4:], strict=True):
        assert 0 < one.activation_bytes < before.activation_bytes
        assert (one.weight_ns, one.trained) == (0, 0)
        assert one.backward_ns == before.backward_ns - before.weight_ns


def test_zero_cuts_states_gradients_and_weights_in_turn() -> None:
    layout = ParallelLayout(dp=4, stages=(12,))
    whole = [
        memory(MODEL, Device(), replace(layout, zero=zero), AMOUNTS)[0] for zero in (0, 1, 2, 3)
    ]
    count = MODEL.parameters
    assert (whole[0].weights, whole[0].gradients) == (2 * count, 4 * count)
    assert whole[0].optimizer == 4 * whole[1].optimizer == 12 * count
    assert whole[1].gradients == 4 * whole[2].gradients
    assert whole[2].weights == 4 * whole[3].weights


def test_a_spread_vocabulary_is_on_every_rank() -> None:
    layout = ParallelLayout(pp=4, stages=(3, 3, 3, 3), zero=0)
    ends = memory(MODEL, Device(), layout, AMOUNTS)
    spread = replace(layout, spread_vocabulary=True)
    everywhere = memory(MODEL, Device(), spread, AMOUNTS)
    assert sum(one.weights for one in everywhere) == sum(one.weights for one in ends)
    assert everywhere[3].logits * 4 < ends[3].logits
    words = output_layer(MODEL, Device(), spread, AMOUNTS)
    assert words.parameters == 2 * 64 * 1000 // 4
    assert all(one.logits == words.logits_bytes for one in everywhere)


def test_microbatches_in_flight_are_those_of_the_schedules() -> None:
    assert in_flight("1f1b", 4, 1, 100) == (((4,),), ((3,),), ((2,),), ((1,),))
    assert in_flight("gpipe", 2, 1, 100) == (((100,),), ((100,),))
    # Megatron-LM: 2 (pp - r - 1) + (v - 1) pp + 1 chunks on rank r.
    chunks = [max(map(sum, peaks)) for peaks in in_flight("interleaved", 4, 2, 16)]
    assert chunks == [2 * (4 - r - 1) + 4 + 1 for r in range(4)]


def test_the_end_of_a_step_is_in_it() -> None:
    layout = ParallelLayout(pp=2, dp=4, stages=(6, 6), microbatches=4)
    found = step(MODEL, Device(), layout, AMOUNTS)
    times = step_end(layer_costs(MODEL, Device(), layout, AMOUNTS), Device(), layout)
    ends = [row[-1].end_ns for row in found.timeline.ranks]
    tails = zip(ends, times.reduce_ns, times.optimizer_ns, strict=True)
    assert found.total_ns == max(map(sum, tails)) > found.timeline.makespan_ns
    assert optimizer_ns(Device(memory_bytes_per_s=30 * 10**9), 10**9) == 10**9


def test_uneven_microbatches_take_longer_and_hold_more() -> None:
    layout = ParallelLayout(pp=2, stages=(6, 6), microbatches=4)
    amounts = [MODEL.amounts(tokens=n, tiles=n) for n in (10, 190, 10, 190)]
    alike = step(MODEL, Device(), layout, MODEL.amounts(tokens=100, tiles=100))
    uneven = step(MODEL, Device(), layout, amounts)
    assert uneven.total_ns > alike.total_ns
    assert uneven.memory_bytes[0] > alike.memory_bytes[0]


def test_several_encoders_stand_one_behind_the_other() -> None:
    audio = replace(VISION, name="audio", unit="clips", unit_tokens=32, handed_tokens=8)
    model = replace(MODEL, parts=(VISION, audio, TEXT))
    layers = layer_costs(model, Device(), ParallelLayout(), {**AMOUNTS, "clips": 3})
    features = 2 * 2 * 4 * 64
    assert layers[3].output_bytes == features
    # Inside the second encoder the first one's features travel too.
    assert layers[4].output_bytes == features + 2 * 3 * 32 * 32
    assert layers[7].output_bytes == features + 2 * 3 * 8 * 64
    assert layers[8].output_bytes == 2 * 100 * 64
    # No gradients pass through the second encoder to the first.
    still = model.freeze("audio")
    row = layer_costs(still, Device(), ParallelLayout(), {**AMOUNTS, "clips": 3})
    assert [one.backward_ns > 0 for one in row[:8]] == [True] * 4 + [False] * 4


def test_models_and_devices_are_read_by_name_or_file(tmp_path: Path) -> None:
    assert read_device("b200") == DEVICES["b200"]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"like": "a100", "efficiency_percent": 61, "measured": True}))
    mine = read_device(str(path))
    assert (mine.name, mine.efficiency_percent, mine.flops_per_s) == ("mine", 61, 312 * 10**12)
    assert "measured" in mine.origin
    assert "not measured" in Device().origin
    config = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3,
        "num_attention_heads": 4, "vocab_size": 300,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    pair = read_model(f"internvit-6b+{tmp_path}")
    assert [part.kind for part in pair.parts] == ["encoder", "language"]
    three = read_model(f"vit-22b+vit-5b+{tmp_path / 'config.json'}")
    assert [len(part.layers) for part in three.parts] == [48, 48, 3]
    for name in ("mllm-9b", "vit-11b+gpt-175b", "internvit-6b+yi-34b"):
        assert read_model(name).name == name


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "mamba"}, "'mamba' is not known"),
        ({}, "with hidden_size, intermediate_size, num_hidden_layers"),
        ({"model_type": "gemma2", "hidden_size": 8}, "needs num_hidden_layers"),
        ({"model_type": "llama", "num_key_value_heads": 3}, "32 heads are no multiple of"),
        ({"model_type": "llama", "head_dim": "x"}, "needs head_dim, a whole number"),
        ({"model_type": "clip", "image_size": 8, "patch_size": 9}, "9 is above image_size 8"),
        ({"model_type": "llama", "hidden_size": 100, "num_attention_heads": 3}, "no multiple of 3"),
        (
            {"model_type": "llava", "vision_config": {"model_type": "swin"}},
            "encoder 'swin' is not known",
        ),
        ({"model_type": "mixtral", "hidden_size": "8"}, r"hidden_size, a whole number .* is '8'"),
    ],
)
def test_a_config_that_cannot_be_read_says_what_it_needs(
    config: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words) as found:
        read_config(config)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tp": 0}, "tp is 0; give 1 or more"),
        ({"zero": 4}, "zero is 4"),
        ({"pp": 2, "stages": (3,)}, "give 2 numbers"),
        ({"stages": (3,), "recompute": ((5,),)}, "has 3 layers and recomputes"),
        ({"recompute": "some"}, "give none, all, or positions"),
    ],
)
def test_layouts_that_contradict_themselves_are_refused(
    fields: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        ParallelLayout(**fields)  # type: ignore[arg-type]


def test_stages_must_hold_all_layers() -> None:
    with pytest.raises(ValueError, match=r"stages of .* but the model has 12"):
        memory(MODEL, Device(), ParallelLayout(pp=2, stages=(5, 5)), AMOUNTS)
    with pytest.raises(ValueError, match="zbv has 2 stages on a rank; vpp is 1, give 2"):
        ParallelLayout(pp=2, stages=(6, 6), schedule="zbv", microbatches=4)
    with pytest.raises(ValueError, match="1f1b has 2 stages on 2 ranks; vpp is 2, give 1"):
        step(MODEL, Device(), ParallelLayout(pp=2, vpp=2, stages=(3, 3, 3, 3)), AMOUNTS)


def test_a_config_with_values_of_other_types_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    base = {"model_type": "vit", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    needed, other = (
        "config.json: vit needs {}, a whole",
        "config.json is no config.json, a field has",
    )
    for name, bad in {"patch_size": 0, "image_size": {}, "architectures": 3}.items():
        path.write_text(json.dumps(base | {name: bad}))
        words = other if name == "architectures" else needed.format(name)
        with pytest.raises(ValueError, match=words):
            read_model(str(path))
