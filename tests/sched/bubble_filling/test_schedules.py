"""Filled schedules: what holds for all of them, and that the validator sees what does not."""

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from benchmarks.baselines.joint_pipelines import balanced
from benchmarks.baselines.optimus_algorithm2 import fill_optimus
from counterpoise.sched import check, lower, parse_program, simulate
from counterpoise.sched.bubble_filling.choose import PlanScan, fitting, scan
from counterpoise.sched.bubble_filling.encoder_plans import (
    EncoderPlan,
    Host,
    host_step,
    plan_problem,
)
from counterpoise.sched.bubble_filling.filled_program import fill_program
from counterpoise.sched.bubble_filling.gaps import COMMUNICATING, COMPUTING, FREE, Ints
from counterpoise.sched.bubble_filling.instance import FilledSchedule, FillProblem
from counterpoise.sched.bubble_filling.presets import case_setup
from counterpoise.sched.bubble_filling.search import fill_bubbles
from counterpoise.sched.bubble_filling.setup import FillSetup
from counterpoise.sched.bubble_filling.timeline import bubble_causes, fill_timeline
from counterpoise.sched.render.svg import render_svg
from counterpoise.sched.render.trace import render_trace
from tests.sched.bubble_filling.validate import check_filled, filled_problems

PLAN = EncoderPlan(stages=2, tensor=8)


@cache
def job(microbatches: int = 8) -> tuple[FillSetup, Host]:
    """The paper's model A, whose steps are short."""
    setup = replace(case_setup("A"), microbatches=microbatches)
    return setup, host_step(setup)


def problem(tensor: int = 8, split: bool = True) -> FillProblem:
    setup, host = job()
    plan = replace(PLAN, tensor=tensor)
    how = fitting(setup)[0] if split else None
    return plan_problem(setup, plan, host, splitting=how)


def scarce(split: bool = False) -> tuple[FillSetup, Host]:
    """No data-parallel bubbles and eight encoders' work: much stays exposed."""
    setup, _ = job()
    setup = replace(setup, gather_ns=0, scatter_ns=0, encoders={8: setup.encoders[8] * 2})
    return setup, host_step(setup)


@pytest.mark.parametrize("tensor", [8, 4])
@pytest.mark.parametrize("split", [False, True])
def test_every_plan_is_valid(tensor: int, split: bool) -> None:
    filled = fill_bubbles(problem(tensor, split))
    assert list(filled_problems(filled)) == []


def test_ours_is_never_behind_the_printed_algorithm() -> None:
    setup, host = scarce()
    for stages in (1, 2, 4):
        one = plan_problem(setup, replace(PLAN, stages=stages), host)
        assert fill_bubbles(one).step_ns <= fill_optimus(one).step_ns + 100_000


def test_frozen_encoders_only_go_forward() -> None:
    setup, host = job()
    frozen = tuple(replace(stack, trainable=False) for stack in setup.encoders[8])
    one = plan_problem(replace(setup, encoders={8: frozen}), PLAN, host)
    filled = fill_bubbles(one)
    assert all(p.backward.size == 0 for p in filled.pipelines)
    assert filled.after_ns == 0


def test_the_encoders_own_collectives_have_a_place() -> None:
    setup, _ = job()
    setup = replace(setup, encoder_gather_ns=10**8, encoder_scatter_ns=2 * 10**8)
    found = scan(setup, candidates=[PLAN], splittings=(fitting(setup)[0],)).best
    first = min(int(p.forward.min()) for p in found.filled.pipelines)
    assert first >= found.filled.problem.forward.release[0] - found.filled.before_ns
    late = found.filled.problem.backward.release
    assert late[0] > late[-1] > 0
    assert found.host.gaps.step_ns > host_step(setup).gaps.step_ns


def test_the_planner_chooses_the_shortest_step_and_prunes_without_loss() -> None:
    setup, _ = job()
    every, pruned = (scan(setup, splittings=(None,), prune=prune) for prune in (False, True))
    assert pruned.best.filled.step_ns == every.best.filled.step_ns
    assert pruned.skipped > 0
    assert all(
        a.filled.step_ns <= b.filled.step_ns
        for a, b in zip(every.chosen, every.chosen[1:], strict=False)
    )


def test_activations_are_counted_with_and_without_recomputation() -> None:
    setup, host = job()
    setup = replace(setup, memory_bytes=45 * 10**9)
    found: PlanScan = scan(setup, prune=False, host_of=lambda _: host)
    held = {(one.plan.stages, one.plan.tensor, one.plan.recompute) for one in found.chosen}
    refused = {(plan.stages, plan.tensor, plan.recompute) for plan, _ in found.refused}
    assert any(not recompute and (s, t, True) in held for s, t, recompute in refused)


# The validator: each thing that can be wrong, done wrong.


def moved(filled: FilledSchedule, which: int, change: Ints) -> FilledSchedule:
    parts = list(filled.pipelines)
    parts[which] = replace(parts[which], forward=parts[which].forward + change)
    return replace(filled, pipelines=tuple(parts))


def proofs(filled: FilledSchedule) -> set[str]:
    return {one.proof for one in filled_problems(filled)}


def test_a_kernel_in_no_bubble_is_found() -> None:
    filled = fill_bubbles(problem())
    rank = filled.problem.gaps.ranks[0]
    busy = int(rank.start[rank.kind == COMPUTING][0])
    start = filled.pipelines[0].forward.copy()
    assert "inside" in proofs(moved(filled, 0, np.full_like(start, busy) - start.min()))


def test_two_kernels_at_once_are_found() -> None:
    filled = fill_bubbles(problem())
    change = np.zeros_like(filled.pipelines[0].forward)
    change[1] = filled.pipelines[0].forward[0] - filled.pipelines[0].forward[1]
    assert "alone" in proofs(moved(filled, 0, change))


def test_a_stage_before_its_input_is_found() -> None:
    filled = fill_bubbles(problem())
    change = np.zeros_like(filled.pipelines[0].forward)
    change[:, 1] = -filled.problem.hop_ns - 10**9
    assert "ordered" in proofs(moved(filled, 0, change))


def test_a_late_forward_is_found() -> None:
    filled = fill_bubbles(problem())
    assert "dependencies" in proofs(moved(filled, 0, np.array(filled.step_ns)))


def test_an_early_backward_is_found() -> None:
    filled = fill_bubbles(problem())
    first = replace(filled.pipelines[0], backward=filled.pipelines[0].backward - filled.step_ns)
    assert "dependencies" in proofs(replace(filled, pipelines=(first, *filled.pipelines[1:])))


def test_a_microbatch_done_twice_is_found() -> None:
    filled = fill_bubbles(problem())
    first = replace(filled.pipelines[0], microbatches=filled.pipelines[1].microbatches)
    broken = replace(filled, pipelines=(first, *filled.pipelines[1:]))
    assert "complete" in proofs(broken)
    with pytest.raises(ValueError, match="complete"):
        check_filled(broken)


def test_too_many_activations_are_found() -> None:
    filled = fill_bubbles(problem())
    assert max(len(p.microbatches) for p in filled.pipelines) == 4
    assert proofs(replace(filled, problem=replace(filled.problem, most=4))) == set()
    assert proofs(replace(filled, problem=replace(filled.problem, most=3, copies=9))) == {"memory"}


# What schedules can be turned into.


def test_a_filled_schedule_renders_and_keeps_all_work() -> None:
    _, host = job()
    filled = fill_bubbles(problem())
    timeline = fill_timeline(host, filled)
    for rank, row in enumerate(timeline.ranks):
        assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(row))
        guests = sum(s.end_ns - s.start_ns for s in row if s.what.kind in ("EF", "EB"))
        planned = sum(
            int(ns.ns[0, 0][ns.resource == 0].sum()) * len(p.microbatches)
            for p in filled.pipelines
            if rank in p.ranks
            for ns in (filled.problem.forward, filled.problem.backward)
        )
        assert guests >= planned
    assert timeline.bubble_ratio < host.timeline.bubble_ratio
    assert render_svg([timeline]).startswith("<svg")
    assert "EF" in render_trace([timeline])


def test_a_filled_program_is_sound_and_waits_in_no_circle() -> None:
    _, host = job()
    made = fill_program(host, fill_bubbles(problem()))
    check(made)
    layers = {p.kind for row in made.ranks for p in row if p.kind.startswith("E")}
    assert len(layers) == 2 * 24
    kinds = {p.kind for row in made.ranks for p in row}
    costs = replace(host.costs, pass_ns={**host.costs.pass_ns, **dict.fromkeys(kinds, 1)})
    assert simulate(made, costs).makespan_ns > 0


def test_a_filled_program_keeps_its_edges_as_text() -> None:
    _, host = job()
    made = fill_program(host, fill_bubbles(problem()))
    assert len(made.edges) == 8 * 4  # of 8 microbatches: a hop and the features, and both back
    assert parse_program(str(made)) == made
    lowered = lower(made)
    assert parse_program(str(lowered)) == lowered


def test_what_encoders_send_to_other_ranks_becomes_messages() -> None:
    _, host = job()
    made = fill_program(host, fill_bubbles(problem()))
    lowered = lower(made)
    check(lowered)
    crossing = [e for e in made.edges if made.rank_of(e.source) != made.rank_of(e.target)]
    for end in ("SEND_X_", "RECV_X_"):
        sent = sum(item.kind.startswith(end) for row in lowered.ranks for item in row)
        assert sent == len({(e.source, made.rank_of(e.target)) for e in crossing}) > 8


def test_every_bubble_has_one_cause() -> None:
    _, host = job()
    for causes, one in zip(bubble_causes(host.gaps, host.timeline), host.gaps.ranks, strict=True):
        idle = int((one.end - one.start)[np.isin(one.kind, (FREE, COMMUNICATING))].sum())
        assert sum(causes.values()) == idle


def test_balancing_by_the_appendix_and_by_evenness_are_close() -> None:
    setup, _ = job()
    assert balanced(setup).makespan_ns == pytest.approx(
        balanced(setup, even=True).makespan_ns, rel=0.05
    )
