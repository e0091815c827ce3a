"""What the search for filled schedules places, tries and bounds, worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from counterpoise.sched.bubble_filling.encoder_plans import EncoderPlan, host_step, plan_problem
from counterpoise.sched.bubble_filling.gaps import COMPUTING, FREE, Stretches
from counterpoise.sched.bubble_filling.instance import StageKernels
from counterpoise.sched.bubble_filling.pipelines import fill, make_space
from counterpoise.sched.bubble_filling.search import Effort, Lists, _Search, fill_bubbles
from tests.sched.bubble_filling.test_by_hand import SETUP, filled, proofs
from tests.sched.bubble_filling.validate import filled_problems


def free(ns: int, busy: int = 0) -> Stretches:
    """A GPU that computes for a while, and then is free until some time."""
    if not busy:
        return Stretches(*(np.array([x], np.int64) for x in (0, ns, FREE)))
    rows = ((0, 0, busy), (0, busy, ns), (FREE, COMPUTING, FREE))
    return Stretches(*(np.array(row, np.int64) for row in rows))


def test_a_microbatch_with_fewer_pieces_is_placed_behind_the_one_before() -> None:
    # The second of two microbatches needs one piece less: 0 ns in front.
    ns = np.array([[[10, 5], [0, 5]]], np.int64)
    work = StageKernels(np.zeros(2, np.int64), ns, np.zeros(2, np.int64))
    space = make_space((free(100),))
    rows = np.array([0, 1], np.int64)
    found = fill(space, work, (0,), rows, 0, 3)
    assert found.starts.tolist() == [[[0, 10]], [[15, 15]]]
    assert found.done.tolist() == [18, 23]
    # A result must be there by the stop, and may be there at it.
    assert fill(space, work, (0,), rows, 0, 3, 23).placed == 2
    assert fill(space, work, (0,), rows, 0, 3, 22).placed == 1


def test_gradients_are_reduced_when_the_last_microbatch_has_gone_back() -> None:
    large, _ = SETUP.encoders[2]
    sized = {2: (replace(large, layer=replace(large.layer, parameters=10**6)),)}
    # 4 million parameters over 8 GPUs: half a millisecond, longer than a microbatch takes.
    setup = replace(SETUP, encoders=sized, data=2, encoder_scatter_ns=10**9)
    found = fill_bubbles(plan_problem(setup, EncoderPlan(4, 2), host_step(setup)))
    (one,) = found.pipelines
    assert found.problem.backward.release.max() > 0
    assert len(one.microbatches) == 4
    assert not proofs(found)
    # With less time after the step there is none to reduce them.
    assert "collectives" in proofs(replace(found, after_ns=found.after_ns // 2))


def test_parameters_are_gathered_before_the_first_microbatch() -> None:
    large, _ = SETUP.encoders[2]
    sized = {2: (replace(large, layer=replace(large.layer, parameters=10**6)),)}
    setup = replace(SETUP, encoders=sized, data=2, encoder_gather_ns=10**9)
    found = fill_bubbles(plan_problem(setup, EncoderPlan(4, 2), host_step(setup)))
    assert not proofs(found)
    assert "collectives" in proofs(replace(found, before_ns=found.before_ns // 2))


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_backward_begins_a_hop_after_the_stage_behind(stage: int) -> None:
    one = fill_bubbles(plan_problem(SETUP, EncoderPlan(4, 2), host_step(SETUP)))
    (p,) = one.pipelines
    end = p.backward[:, stage + 1, -1] + one.problem.backward.ns[0, 0, -1]
    for early_ns in (0, 1):
        backward = p.backward.copy()
        backward[:, stage, 0] = end + SETUP.hop_ns - early_ns
        moved = replace(one, pipelines=(replace(p, backward=backward),))
        found = "begins before its input" in str(list(filled_problems(moved)))
        assert found == (early_ns > 0)


@pytest.mark.parametrize("early_ns", [0, 1])
def test_a_gradient_takes_a_hop_to_the_encoders(early_ns: int) -> None:
    _, one = filled()
    p, gaps = one.pipelines[0], one.problem.gaps
    there = gaps.gradient_ns[list(p.microbatches)] + SETUP.hop_ns
    backward = p.backward.copy()
    backward[:, -1, 0] = there - early_ns
    moved = replace(one, pipelines=(replace(p, backward=backward), *one.pipelines[1:]))
    said = [found for found in filled_problems(moved) if "goes back before" in str(found)]
    assert len(said) == (len(p.microbatches) if early_ns else 0)


def search(plan: EncoderPlan, *permille: int) -> _Search:
    """A search whose microbatches cost permille of the job's, in their order, or are alike."""
    problem = plan_problem(SETUP, plan, host_step(SETUP))
    if permille:
        forward, backward = (
            replace(
                work, ns=np.ascontiguousarray(work.ns * np.array(permille)[None, :, None] // 1000)
            )
            for work in (problem.forward, problem.backward)
        )
        problem = replace(problem, fixed=True, forward=forward, backward=backward)
    return _Search(problem, Effort())


def test_unequal_microbatches_are_dealt_longest_first_and_in_order() -> None:
    def rows_of(*costs: int) -> list[Lists]:
        return list(search(EncoderPlan(2, 2), *costs).candidates())

    assert rows_of(100, 40, 30, 50) == [((0,), (1, 2, 3))] * 2
    assert rows_of(30, 40, 50, 100) == [((3,), (0, 1, 2)), ((0, 2), (1, 3))]


def test_no_pipeline_is_given_more_than_its_memory_holds() -> None:
    problem = replace(search(EncoderPlan(2, 2)).problem, most=3)
    found = _Search(problem, Effort())
    assert found.evaluate(((0, 1, 2, 3), ())) is None
    assert found.evaluate(((0, 1, 2), (3,))) is not None


def test_as_many_moves_are_tried_as_the_effort_says(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = search(EncoderPlan(1, 1), 100, 40, 30, 50).problem
    found = fill_bubbles(problem)
    late = replace(found, before_ns=found.before_ns + 1)
    two, tried = _Search(problem, Effort(moves=3)), list[Lists]()
    assert len(list(two._neighbours(late))) > 3
    monkeypatch.setattr(two, "evaluate", lambda moved, _: tried.append(moved))
    assert two.improve(late) is late
    assert len(tried) == len(set(tried)) == 3
