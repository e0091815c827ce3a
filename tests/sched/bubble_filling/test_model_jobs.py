"""Jobs of any model: its language model costs what `sched.shapes` says, to the ns and byte."""

import random
from dataclasses import replace

import pytest

from counterpoise.sched.bubble_filling.encoder_plans import host_step, plans
from counterpoise.sched.bubble_filling.presets import model_setup
from counterpoise.sched.bubble_filling.setup import total_ns
from counterpoise.sched.shapes import (
    Amounts,
    Device,
    Model,
    ParallelLayout,
    layer_costs,
    read_device,
    read_model,
    step,
    step_end,
)

MODELS = {
    "internvit-6b+internlm2-20b": (1, 2, 4, 8),
    "internvit-300m+llama3-8b": (1, 2, 4),
    "vit-22b+vit-5b+gpt-175b": (2, 4, 8),
}


def filling_costs_what_shapes_say(
    model: Model, device: Device, layout: ParallelLayout, amounts: Amounts
) -> None:
    """Check the step and the memory of a language model, one equal stage on each rank."""
    language = model.only(model.language.name)
    layout = replace(
        layout, stages=(len(model.language.layers) // layout.pp,) * layout.pp, zero=1,
        # What filling leaves out: the vocabulary, what the loader holds, senders that wait.
        spread_vocabulary=True, prefetch=0, overlap=True,
    )  # fmt: skip
    host = host_step(model_setup(model, device, layout, amounts))
    expected = step(language, device, layout, amounts)
    chain = layer_costs(language, device, layout, amounts)
    ends = step_end(chain, device, layout).reduce_ns
    whole = expected.timeline.makespan_ns + max(ends)
    assert host.timeline.makespan_ns == pytest.approx(whole, abs=2)
    assert host.timeline.peak_bytes == expected.memory_bytes


@pytest.mark.parametrize("seed", range(12))
def test_the_language_model_costs_what_shapes_say(seed: int) -> None:
    draw = random.Random(seed)
    name = draw.choice(list(MODELS))
    model, device = read_model(name), read_device(draw.choice(["a100", "h100", "b200"]))
    pp = draw.choice(MODELS[name])
    layout = ParallelLayout(
        tp=draw.choice([1, 2, 8]), pp=pp, dp=draw.choice([1, 3, 16]),
        microbatches=draw.choice([pp, 4 * pp]), recompute=draw.choice(["none", "all"]),
    )  # fmt: skip
    amounts = model.amounts(tiles=draw.randint(1, 9), tokens=draw.choice([1024, 4096]))
    filling_costs_what_shapes_say(model, device, layout, amounts)


def test_encoders_layers_cost_what_shapes_say() -> None:
    model, device = read_model("internvit-6b+internlm2-20b"), read_device("h100")
    layout, amounts = ParallelLayout(tp=8, pp=4, microbatches=8), model.amounts(tiles=9)
    setup = model_setup(model, device, layout, amounts)
    for width, (stack,) in setup.encoders.items():
        cost = layer_costs(model, device, ParallelLayout(tp=width), amounts)[1]
        assert total_ns(stack.layer.forward) == cost.forward_ns
        assert total_ns(stack.layer.backward) == cost.backward_ns
        assert stack.layer.saved_bytes == cost.activation_bytes
        assert stack.layer.checkpoint_bytes == cost.input_bytes
    # One chunk a rank has one warm-up.
    assert {plan.warmup for plan in plans(setup)} == {"megatron"}


def test_a_model_that_cannot_be_filled_is_refused() -> None:
    device, layout = read_device("h100"), ParallelLayout(tp=2, pp=2, microbatches=4)
    alone = read_model("llama3-8b")
    with pytest.raises(ValueError, match="has no encoder whose work could be hidden"):
        model_setup(alone, device, layout, alone.amounts())
