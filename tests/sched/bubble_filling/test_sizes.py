"""Memory, times and limits of the small job of test_by_hand.py, worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from counterpoise.sched.bubble_filling.choose import scan
from counterpoise.sched.bubble_filling.encoder_plans import (
    EncoderPlan,
    host_step,
    memory,
    plan_problem,
    plans,
)
from counterpoise.sched.bubble_filling.setup import FillSetup, Kernel, KernelLayer, Stack
from tests.sched.bubble_filling.test_by_hand import SETUP, US, layer

LARGE = layer("large", 60, parameters=2000, saved_bytes=1000, checkpoint_bytes=10)
SMALL = layer("small", 20, parameters=100, saved_bytes=500)
SIZED = replace(
    SETUP,
    data=2,
    model=Stack(layer("llm", 100, parameters=1000, saved_bytes=50, checkpoint_bytes=7), 8),
    encoders={2: (Stack(LARGE, 4), Stack(SMALL, 8, trainable=False))},
)
PLAN = EncoderPlan(2, 2)


def test_a_gpu_holds_states_activations_and_one_layer_that_is_recomputed() -> None:
    host = host_step(SIZED, PLAN)
    found = memory(SIZED, PLAN, host)
    # 8 x 1,000 parameters over 8 GPUs: weight and gradient of 6 bytes, and half of 12. 1F1B keeps
    # as many microbatches as there are ranks after, of two layers' inputs each.
    assert found.model == 1000 * 6 + 1000 * 12 // 2 + 4 * 2 * 7 + 50 - 7
    # The page's peak is the same.
    assert found.model == max(host.timeline.peak_bytes)
    # 8,000 parameters of 6 bytes and 800 frozen ones of 2, once more; the model has 8,000 of 6.
    assert found.copies == (2000 * 6 // 2 + 200 * 2 // 2) / (6000 + 6000 + 200)
    # 4 x 2,000 over 4, the optimizer over 2 replicas of 2 pipelines; 8 x 100 that are frozen.
    assert found.states == 2000 * 6 + 2000 * 12 // 4 + 200 * 2 + 1000 - 10
    assert found.available == 80 * 10**9
    # of 3 replicas
    third = memory(replace(SIZED, data=3), PLAN, host).states
    assert found.states - third == 2000 * 12 // 4 - 2000 * 12 // 6
    assert memory(SIZED, replace(PLAN, recompute=False), host).states == found.states - 990


def test_the_largest_of_the_encoders_layers_is_recomputed() -> None:
    host = host_step(SETUP, PLAN)
    again, kept = (memory(SETUP, replace(PLAN, recompute=r), host).states for r in (True, False))
    assert again - kept == 1000 - 10


def test_one_microbatch_must_fit() -> None:
    setup = replace(SIZED, microbatches=2)  # one for each pipeline of encoders
    host = host_step(setup, PLAN)
    need = memory(setup, PLAN, host)
    enough = need.model + need.states + need.per_microbatch
    fits = replace(setup, memory_bytes=enough)
    plan_problem(fits, PLAN, host)
    with pytest.raises(ValueError, match="cut them further"):
        plan_problem(replace(fits, memory_bytes=enough - 1), PLAN, host)


def times(setup: FillSetup) -> dict[str, int]:
    """The time of each pass of a stage of the language model."""
    return {kind: int(np.asarray(ns)) for kind, ns in host_step(setup).costs.pass_ns.items()}


@pytest.mark.parametrize("odd", [0, 1])
def test_a_stage_takes_as_long_as_its_layers(odd: int) -> None:
    first, *rest = SIZED.model.layer.forward
    one = replace(SIZED.model.layer, forward=(replace(first, ns=first.ns + odd), *rest))
    took = times(replace(SIZED, recompute=False, model=Stack(one, 8)))
    # Two layers of 100 us at work and 30 us of communication, and twice that backward.
    assert took["F"] == 2 * (130 * US + odd)
    assert took["B"] == 2 * 260 * US
    again = times(replace(SIZED, model=Stack(one, 4)))
    assert again["B"] == took["F"] // 2 + took["B"] // 2


def test_the_smallest_of_everything_is_allowed() -> None:
    kernel = (Kernel("gemm", "compute", 1),)
    tiny = KernelLayer("tiny", kernel, kernel)
    setup = FillSetup("tiny", 1, 1, 1, 1, 1, Stack(tiny, 1), {1: (Stack(tiny, 1),)})
    assert memory(setup, EncoderPlan(1, 1), host_step(setup)).per_microbatch == 0
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="at least 1 ns"):
            replace(
                setup, model=Stack(KernelLayer("no", (Kernel("g", "compute", wrong),), kernel), 1)
            )
        with pytest.raises(ValueError, match="has no kernels"):
            replace(setup, encoders={1: (Stack(tiny, wrong),)})


def test_widths_that_do_not_divide_are_refused_with_those_that_do() -> None:
    setup = replace(SETUP, tensor=6, encoders={4: SETUP.encoders[2]})
    with pytest.raises(ValueError, match=r"over 4 GPUs do not divide 6; use one of \[1, 2, 3, 6\]"):
        plan_problem(setup, EncoderPlan(1, 4), host_step(setup))


def test_every_candidate_is_chosen_refused_or_skipped() -> None:
    # So long a gather that a step is longer than the best of fewer pipelines, filled.
    setup = replace(SIZED, encoder_gather_ns=10**12)
    for prune in (True, False):
        found = scan(setup, prune=prune)
        assert len(found.chosen) + len(found.refused) + found.skipped == len(plans(setup))
        assert (found.skipped > 0) == prune
