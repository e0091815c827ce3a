"""What every plan keeps, whatever the strategies."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.config import (
    GlobalBatch,
    Microbatch,
    PlanConfig,
    Planned,
    Window,
)
from counterpoise.balancer.planning.steps import group_step

BASE = PlanConfig(
    ranks=2, samples_per_step=24, accumulate="auto", resources=("tiles", "tokens"),
    budgets=(9, 4096), grouping="isf", partition="greedy",
)  # fmt: skip


FIXED = replace(BASE, grouping="fixed", budgets=(None, None), batch_size=3)


def ordinals(batches: Sequence[GlobalBatch]) -> list[int]:
    return [o for b in batches for rank in b.ranks for m in rank for o in m.ordinals]


def draw(samples: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, 8, samples), rng.integers(20, 3000, samples)], axis=1)


def plan(config: PlanConfig, costs: np.ndarray, start: int = 0, last: bool = False) -> Planned:
    return make_planner(config).plan(Window(1, 7, start, costs, last))


@given(
    samples=st.integers(1, 24), ranks=st.integers(1, 9), seed=st.integers(0, 5),
    grouping=st.sampled_from(["isf", "fixed"]), partition=st.sampled_from(["greedy", "given"]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_every_sample_is_planned_once_within_budgets_on_equal_ranks(
    samples: int, ranks: int, seed: int, grouping: str, partition: Any
) -> None:
    config = replace(FIXED if grouping == "fixed" else BASE, ranks=ranks, partition=partition)
    costs = draw(samples, seed)
    planned = plan(config, costs, start=100, last=True)
    (batch,) = planned.batches
    assert Counter(ordinals(planned.batches)) == Counter(range(100, 100 + samples))
    assert planned.consumed == samples
    assert len({len(rank) for rank in batch.ranks}) == 1
    microbatches = [m for rank in batch.ranks for m in rank]
    for microbatch in microbatches:
        load = costs[[o - 100 for o in microbatch.ordinals]].sum(axis=0)
        assert grouping == "fixed" or (load <= (9, 4096)).all()
    empty = sum(not m.ordinals for m in microbatches)
    assert empty == max(0, len(microbatches) - samples)


def test_the_same_window_gives_the_same_plan() -> None:
    assert plan(BASE, draw(24)) == plan(BASE, draw(24))


def test_fixed_groups_are_slices_in_order() -> None:
    config = replace(FIXED, partition="given", accumulate=4)
    (batch,) = plan(config, draw(24)).batches
    assert [m.ordinals for m in batch.ranks[0]] == [
        (0, 1, 2),
        (6, 7, 8),
        (12, 13, 14),
        (18, 19, 20),
    ]


def test_the_last_partial_step_is_dropped_or_padded() -> None:
    dropped = plan(replace(BASE, drop_last=True), draw(5), last=True)
    assert dropped.batches == ()
    assert dropped.consumed == 5
    fixed = replace(FIXED, accumulate=4)
    (batch,) = plan(fixed, draw(5), last=True).batches
    sizes = [len(m.ordinals) for rank in batch.ranks for m in rank]
    assert sorted(sizes) == [0, 0, 0, 1, 1, 1, 1, 1]


def test_one_microbatch_of_one_rank_has_all_samples() -> None:
    for grouping in ("fixed", "balanced"):
        batch_size = 8 if grouping == "fixed" else None
        config = PlanConfig(1, 8, 1, ("tiles", "tokens"), (None, None), grouping, seed=3,
                            batch_size=batch_size)  # fmt: skip
        planned = plan(config, draw(8), start=100)
        (batch,) = planned.batches
        assert [mb.ordinals for mb in batch.ranks[0]] == [tuple(range(100, 108))]
        assert (planned.consumed, planned.left_out) == (8, 0)


@pytest.mark.parametrize("accumulate", ["auto", 1])
def test_a_step_of_one_microbatch_is_that_of_the_last_step_which_is_grouped(
    accumulate: Any,
) -> None:
    config = replace(FIXED, ranks=1, accumulate=accumulate, batch_size=24)
    costs = draw(24)
    whole, grouped = plan(config, costs, 100), group_step(config, costs, seed=0, step=7)
    assert len(grouped.steps) == 1
    assert not grouped.group_of.any()
    assert whole == Planned((GlobalBatch(7, ((Microbatch(tuple(range(100, 124))),),)),), 24, ())
    with pytest.raises(ValueError, match="must stay below"):
        plan(config, costs + 2**60)


def test_a_sample_over_budget_is_alone_or_refused_and_reported() -> None:
    costs = draw(24)
    costs[3] = (50, 10)
    alone = plan(BASE, costs)
    assert alone.oversize == (3,)
    assert (3,) in [m.ordinals for rank in alone.batches[0].ranks for m in rank]
    refused = plan(replace(BASE, oversize="refuse"), costs)
    assert refused.oversize == (3,)
    assert sorted(ordinals(refused.batches)) == [k for k in range(24) if k != 3]


def test_an_accumulate_too_small_names_the_smallest_feasible() -> None:
    raised = plan(BASE, draw(24)).batches[0]
    need = len(raised.ranks[0])
    with pytest.raises(ValueError, match=f"smallest accumulate found is {need}"):
        plan(replace(BASE, accumulate=1), draw(24))
    assert len(plan(replace(BASE, accumulate=need), draw(24)).batches[0].ranks[0]) == need


def test_a_short_window_must_be_the_last() -> None:
    with pytest.raises(ValueError, match="last=True"):
        plan(BASE, draw(5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ranks": 0}, "ranks is 0"),
        ({"accumulate": "more"}, "accumulate is 'more'"),
        ({"resources": ()}, "0 names"),
        ({"resources": tuple(map(str, range(33)))}, "at most 32"),
        ({"budgets": (9,)}, "1 budgets for 2 resources"),
        ({"budgets": (9, 0)}, "budget of tokens is 0"),
        ({"grouping": "magic"}, "grouping is 'magic', allowed are"),
        ({"mode": "strict"}, "mode is 'strict'"),
        ({"grouping": "fixed", "batch_size": 4}, "cannot hold budgets"),
        ({"resources": ("tiles", "tiles")}, "each once"),
    ],
)
def test_a_wrong_configuration_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(BASE, **change)


def test_fixed_counts_must_agree() -> None:
    with pytest.raises(ValueError, match="are 6"):
        replace(FIXED, accumulate=1)


CHANGES: dict[str, Any] = {
    "ranks": 3, "samples_per_step": 16, "accumulate": 2, "resources": ("tiles", "frames"),
    "budgets": (9, None), "grouping": "balanced", "partition": "given", "ordering": "two_opt",
    "mode": "epoch", "seed": 1, "drop_last": True, "oversize": "refuse", "batch_size": 4,
    "accumulate_from": 2, "empty_microbatches": False, "waits": "step", "padded": ("tokens",),
    "counts": "free", "time_ns": (("tokens", 2),), "last_step": "even", "pipeline": "costs",
    "dispatched": ("tiles",), "all_or_none": "tiles", "spares": True,
    "multiples": (("tokens", 16),), "buckets": (("tokens", (8, 4096)),), "layout": "own",
    "bucket_by": "tiles",
}  # fmt: skip


def test_the_digest_depends_on_every_field() -> None:
    assert [*CHANGES] == [each.name for each in fields(PlanConfig)]
    for name, value in CHANGES.items():
        grouping = "isf" if name in ("grouping", "batch_size") else "balanced"
        partition = "greedy" if name == "partition" else "multi_resource"
        mode = "window" if name == "bucket_by" else "exact"
        options: Any = {"grouping": grouping, "partition": partition, "mode": mode}
        base = replace(BASE, **options, budgets=(None, 4096) if mode == "window" else BASE.budgets)
        assert replace(base, **{name: value}).digest() != base.digest(), name
    # that of ledgers that do not know later options
    plain = PlanConfig(4, 64, 2, ("tiles", "tokens"), (None, None))
    assert plain.digest() == "9566a1d319f8a021b8c291f8c4868cea"


def test_costs_that_cannot_be_planned_are_refused() -> None:
    for costs, message in [
        (np.full((24, 1), 1), "shape"),
        (np.full((24, 2), 1.5), "cost '0' is 1.5, allowed are whole numbers"),
        (np.full((24, 2), -1), "cost '0' is -1, allowed are whole numbers"),
        (np.full((24, 2), 2**61), "larger unit"),
    ]:
        with pytest.raises(ValueError, match=message):
            plan(BASE, costs)
