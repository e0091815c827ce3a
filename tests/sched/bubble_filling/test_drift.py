"""Filled schedules under other kernel times, and new plans from measured ones."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from benchmarks.bubbles.drift import _means, drifted, factors, host_only_ns, jittered, replan
from benchmarks.bubbles.replay import Kernels, filled_kernels
from counterpoise.sched.bubble_filling.choose import fill_plan, fitting, guarded
from counterpoise.sched.bubble_filling.encoder_plans import (
    EncoderPlan,
    Host,
    host_step,
    plan_problem,
)
from counterpoise.sched.bubble_filling.instance import FilledSchedule, Work
from counterpoise.sched.bubble_filling.presets import case_setup
from counterpoise.sched.bubble_filling.search import fill_bubbles
from counterpoise.sched.bubble_filling.setup import Kernel, pieces


@cache
def planned() -> tuple[Host, FilledSchedule, Kernels]:
    setup = replace(case_setup("D"))
    host = host_step(setup)
    filled = fill_plan(plan_problem(setup, EncoderPlan(2, 8), host, splitting=fitting(setup)[0]))
    return host, filled, filled_kernels(host, filled)


def test_factors_have_mean_one_and_the_variation_asked_for() -> None:
    drawn = factors(0.3, (200_000,), 1)
    assert drawn.mean() == pytest.approx(1, abs=0.01)
    assert drawn.std() == pytest.approx(0.3, rel=0.05)
    assert (factors(0, (3,), 1) == 1).all()


def test_a_drift_is_one_factor_for_each_rank_and_kind() -> None:
    _, _, kernels = planned()
    ns = np.full(len(kernels.ns), 10**6)
    now = drifted(kernels, ns, 0.1, 3)
    pairs = set(zip(kernels.rank, kernels.what, now, strict=True))
    assert len({(r, w) for r, w, _ in pairs}) == len(pairs)


def test_a_time_that_was_measured_once_counts_and_one_that_was_not_is_as_planned() -> None:
    work = Work(np.zeros(2, np.int64), np.array([[[5, 6]]]), np.zeros(2, np.int64))
    total = np.array([[30.0, 60.0], [8.0, 9.0], [0.0, 0.0]])
    assert _means(work, total, np.array([3.0, 1.0, 0.0])).tolist() == [
        [[10, 20]],
        [[8, 9]],
        [[5, 6]],
    ]


def test_pieces_that_are_split_to_fit_fill_a_bubble_of_communication() -> None:
    setup = case_setup("D")
    kernels = setup.model.layer.forward + setup.model.layer.backward
    bubble = max(each.ns for each in kernels if each.resource == "communication")
    ways = fitting(setup)
    assert len(ways) == 2
    for parts, way in enumerate(ways, 1):
        longest = max(pieces(Kernel("long", "compute", 10 * way.longest_ns, True), way))
        assert 0.9 * bubble // parts < longest <= bubble // parts


def test_slower_kernels_never_make_the_step_shorter() -> None:
    _, _, kernels = planned()
    assert kernels.step_ns(kernels.ns * 2) == 2 * kernels.step_ns(kernels.ns) or (
        kernels.step_ns(kernels.ns * 2) > kernels.step_ns(kernels.ns)
    )
    longer = kernels.ns.copy()
    longer[::7] += 50_000
    assert kernels.step_ns(longer) >= kernels.step_ns()


def test_a_guarded_plan_fits_the_real_bubbles_with_room() -> None:
    host, filled, _ = planned()
    tight = fill_bubbles(guarded(filled.problem, 10, 1_000_000))
    real = replace(tight, problem=filled.problem)
    assert filled_kernels(host, real).step_ns() <= tight.step_ns
    early = tight.problem.gaps.need_ns <= filled.problem.gaps.need_ns
    assert early.all()


def test_planning_again_takes_back_at_least_half_of_what_a_drift_costs() -> None:
    host, filled, kernels = planned()
    lost, kept = 0.0, 0.0
    for seed in range(3):
        now = drifted(kernels, kernels.ns, 0.1, seed)
        alone = host_only_ns(host, now)
        traces = [jittered(now, 0.02, 10 * seed + at) for at in range(3)]
        moved, new = replan(host, filled, kernels, traces)
        again = filled_kernels(moved, new)
        nominal = filled_kernels(host, replace(new, problem=filled.problem)).ns
        lost += kernels.step_ns(now) - alone
        kept += again.step_ns(drifted(again, nominal, 0.1, seed)) - alone
    assert lost > 0
    assert kept <= lost / 2


def test_a_hop_between_ranks_takes_its_time_in_every_direction() -> None:
    _, filled, kernels = planned()
    guest = np.arange(len(kernels.rank)) >= kernels.host
    source, target = kernels.source, kernels.target
    rank_before, rank_after = kernels.rank[source], kernels.rank[target]
    crosses = (rank_before != rank_after) & (guest[source] | guest[target])
    inside = crosses & guest[source] & guest[target]
    hops = {
        "output to the next stage": inside & (rank_before < rank_after),
        "gradient to the stage before": inside & (rank_before > rank_after),
        "output to the language model": crosses & ~guest[target],
        "gradient from the language model": crosses & ~guest[source],
    }
    assert filled.problem.hop_ns > 0
    for name, edges in hops.items():
        assert edges.any(), name
        assert (kernels.lag[edges] == filled.problem.hop_ns).all(), name
