"""Recomputation: the least time that fits, never over the limit, and bytes as predicted."""

import itertools
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn

from counterpoise.sched.planners.recompute import (
    Policy,
    Saving,
    Stage,
    Trial,
    all_or_nothing,
    exact_policies,
    modelled_stages,
    plan_recompute,
    predicted_bytes,
    savings,
    tighten,
)
from counterpoise.sched.shapes import LayerCost, ParallelLayout, simulate_step
from tests.sched.planners.published import PAIRS
from tests.sched.planners.shaped import A100, pair_layers
from tests.sched.saved_tensors import live_bytes, run_layers

KINDS = ("vit", "llm", "projector")
a_saving = st.fixed_dictionaries(
    {kind: st.builds(Saving, st.integers(0, 50), st.integers(0, 20)) for kind in KINDS}
)
a_stage = st.builds(
    Stage,
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=7).map(tuple),
    st.integers(1, 4),
    st.integers(20, 60),
    st.integers(0, 20),
)


@given(a_stage, a_saving, st.integers(60, 900))
def test_the_plan_is_the_cheapest_that_fits(
    stage: Stage, saving: dict[str, Saving], limit: int
) -> None:
    policy = plan_recompute([stage], saving, limit)[0]
    assert policy.predicted_bytes == predicted_bytes(stage, saving, policy.recompute) <= limit
    every = range(len(stage.layers))
    subsets = (some for n in range(len(every) + 1) for some in itertools.combinations(every, n))
    least = min(
        recomputed_ns(stage, saving, Policy(some, 0))
        for some in subsets
        if predicted_bytes(stage, saving, some) <= limit
    )
    assert recomputed_ns(stage, saving, policy) == least


@given(a_stage, a_saving, st.integers(60, 900))
def test_the_plan_never_costs_more_than_all_or_nothing(
    stage: Stage, saving: dict[str, Saving], limit: int
) -> None:
    policy = plan_recompute([stage], saving, limit)[0]
    usual = all_or_nothing(stage, saving, limit)
    assert len(policy.recompute) <= len(usual.recompute)
    assert recomputed_ns(stage, saving, policy) <= recomputed_ns(stage, saving, usual)


@given(a_stage, a_saving, st.integers(200, 900), st.integers(1, 30))
def test_tightening_takes_what_was_too_much(
    stage: Stage, saving: dict[str, Saving], limit: int, excess: int
) -> None:
    policy = plan_recompute([stage], saving, limit)[0]
    off = limit + excess - policy.predicted_bytes
    if stage.base_bytes + off > limit:
        return
    tighter = tighten(stage, saving, policy, limit + excess, limit)
    assert tighter.predicted_bytes + off <= limit
    assert tighten(stage, saving, policy, limit, limit) == policy


def recomputed_ns(stage: Stage, saving: Mapping[str, Saving], policy: Policy) -> int:
    """Return the time that a stage spends on recomputation for each microbatch."""
    return sum(saving[stage.layers[at]].forward_ns for at in policy.recompute)


def test_savings_come_out_of_differences() -> None:
    stages = [Stage(("vit", "vit"), 3, 100), Stage(("vit", "llm"), 2, 100), Stage(("llm",), 1, 100)]
    trials = [
        Trial(0, {"vit": 2}, 100 + 3 * 2 * 11),
        Trial(1, {"vit": 1, "llm": 1}, 100 + 2 * (11 + 7)),
        Trial(2, {"llm": 1}, 100 + 7),
    ]
    found = savings(stages, trials, {"vit": 5})
    assert found == {"vit": Saving(11, 5), "llm": Saving(7, 1)}


def test_trials_that_say_too_little_are_refused() -> None:
    stages = [Stage(("vit", "llm"), 1, 100)]
    with pytest.raises(ValueError, match="apart"):
        savings(stages, [Trial(0, {"vit": 1, "llm": 1}, 120)], {})
    with pytest.raises(ValueError, match="frees memory"):
        savings([Stage(("vit",), 1, 100)], [Trial(0, {"vit": 1}, 90)], {})
    with pytest.raises(ValueError, match="stage 0 uses 100 bytes"):
        plan_recompute(stages, {"vit": Saving(1), "llm": Saving(1)}, 99)
    with pytest.raises(ValueError, match="no saving is known"):
        plan_recompute(stages, {"vit": Saving(1)}, 99)


class Block(nn.Module):
    """A transformer layer."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.mixed, self.output = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, inner), nn.Linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unsqueeze(0) for part in self.mixed(self.first(x)).chunk(3, dim=-1))
        x = x + self.output(nn.functional.scaled_dot_product_attention(q, k, v)[0])
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


LAYERS = (("vit",) * 6, ("vit",) * 2 + ("llm",) * 3, ("llm",) * 5, ("llm",) * 6)
WIDTH = {"vit": (32, 160), "llm": (64, 256)}


def a_model() -> tuple[list[list[nn.Module]], list[list[Tensor]]]:
    """Four stages of a small model, and the inputs of their live microbatches."""
    torch.manual_seed(0)
    model: list[list[nn.Module]] = []
    inputs: list[list[Tensor]] = []
    for at, kinds in enumerate(LAYERS):
        model.append([])
        for place, kind in enumerate(kinds):
            block: nn.Module = Block(*WIDTH[kind])
            if kind == "llm" and place and kinds[place - 1] == "vit":
                block = nn.Sequential(nn.Linear(32, 64), block)
            model[-1].append(block)
        width = WIDTH[kinds[0]][0]
        inputs.append([torch.randn(96, width, requires_grad=True) for _ in range(4 - at)])
    return model, inputs


@pytest.mark.parametrize("limit", [700_000, 1_000_000, 1_600_000])
def test_measured_bytes_are_as_predicted(limit: int) -> None:
    model, inputs = a_model()

    def used(at: int, recompute: tuple[int, ...]) -> int:
        return live_bytes(model[at], inputs[at], recompute)

    stages = [
        Stage(kinds, 4 - at, used(at, tuple(range(len(kinds))))) for at, kinds in enumerate(LAYERS)
    ]
    trials = [
        Trial(0, {"vit": 2}, used(0, (2, 3, 4, 5))),
        Trial(3, {"llm": 2}, used(3, (2, 3, 4, 5))),
    ]
    saving = savings(stages, trials, {"vit": 2, "llm": 5})
    plan = plan_recompute(stages, saving, limit)
    usual = [all_or_nothing(stage, saving, limit) for stage in stages]
    for at, policy in enumerate(plan):
        measured = used(at, policy.recompute)
        assert measured == pytest.approx(policy.predicted_bytes, rel=0.05)
        final = tighten(stages[at], saving, policy, measured, limit)
        assert used(at, final.recompute) <= limit
    assert sum(len(one.recompute) for one in plan) < sum(len(one.recompute) for one in usual)


def test_recomputed_layers_give_the_same_gradients() -> None:
    model, inputs = a_model()
    x = inputs[1][0]
    gradients = [
        torch.autograd.grad(run_layers(model[1], x, chosen).square().sum(), x)[0]
        for chosen in ((), (0, 2, 4), (0, 1, 2, 3, 4))
    ]
    for one in gradients[1:]:
        torch.testing.assert_close(one, gradients[0])


@pytest.mark.parametrize("gib", [40, 45, 55])
def test_less_is_recomputed_and_the_step_is_shorter(gib: int) -> None:
    pair = PAIRS[3]
    layers = pair_layers(pair.encoder, pair.language, tp=pair.tp)
    layout = ParallelLayout(
        tp=pair.tp, pp=pair.pp, dp=pair.dp, microbatches=16, stages=pair.published
    )
    stages, saving = modelled_stages(layers, layout)
    plan = plan_recompute(stages, saving, gib * 2**30)
    usual = [all_or_nothing(stage, saving, gib * 2**30) for stage in stages]
    exact = exact_policies(layers, layout, plan)
    for one, rough in zip(exact, plan, strict=True):
        assert one.predicted_bytes <= rough.predicted_bytes <= gib * 2**30
    assert sum(len(p.recompute) for p in plan) < sum(len(p.recompute) for p in usual)
    times = []
    for policies in (plan, usual):
        again = replace(layout, recompute=tuple(one.recompute for one in policies))
        times.append(simulate_step([layers] * 16, A100, again).total_ns)
    assert times[0] <= times[1]


def test_stages_must_hold_all_layers() -> None:
    layers = pair_layers("internvit-6b", "llama3-8b")
    with pytest.raises(ValueError, match="has 77"):
        modelled_stages(layers, ParallelLayout(pp=2, stages=(10, 10), microbatches=4))


def test_a_stage_of_1f1b_holds_a_microbatch_for_every_stage_from_it_on() -> None:
    layers = [
        LayerCost("llm", 10, 20, parameters=0, output_bytes=3, activation_bytes=10, input_bytes=3)
    ] * 8
    layout = ParallelLayout(pp=4, microbatches=9, stages=(2, 2, 2, 2))
    stages, _ = modelled_stages(layers, layout)
    assert [stage.live for stage in stages] == [4, 3, 2, 1]
    # The inputs of two layers for each of them, and one layer's activations at work.
    assert [stage.base_bytes for stage in stages] == [4 * 6 + 7, 3 * 6 + 7, 2 * 6 + 7, 6 + 7]
    few, _ = modelled_stages(layers, replace(layout, microbatches=2))
    assert [stage.live for stage in few] == [2, 2, 2, 1]
