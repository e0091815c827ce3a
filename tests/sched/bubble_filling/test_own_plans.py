"""Each encoder its own PP and TP: the second fills what the first leaves, and nothing else."""

import numpy as np
import pytest

from counterpoise.sched.bubble_filling.choose import fitting, scan
from counterpoise.sched.bubble_filling.gaps import COMMUNICATING, COMPUTING, FREE
from counterpoise.sched.bubble_filling.own_plans import BUSY, OwnPlans, left_over, scan_each
from counterpoise.sched.bubble_filling.presets import case_setup, with_encoder_collectives
from tests.sched.bubble_filling.test_by_hand import filled
from tests.sched.bubble_filling.validate import filled_problems


@pytest.fixture(scope="module")
def found() -> tuple[int, OwnPlans]:
    """The best common step of two encoders, and their own plans."""
    setup = with_encoder_collectives(case_setup("22+5"))
    how = fitting(setup)[:1]
    common = scan(setup, splittings=how, most_copies=0.12).best.filled.step_ns
    own = scan_each(setup, common, splittings=how, most_copies=0.12)
    assert own is not None
    return common, own


def test_own_plans_differ_and_are_better(found: tuple[int, OwnPlans]) -> None:
    common, own = found
    assert own.step_ns < common
    assert len({(one.plan.stages, one.plan.tensor) for one in own.parts}) == 2
    # The one with more work first.
    assert own.encoders == (0, 1)
    assert sum(one.memory.copies for one in own.parts) <= 0.12


def test_both_schedules_are_proved(found: tuple[int, OwnPlans]) -> None:
    for one in found[1].parts:
        assert list(filled_problems(one.filled)) == []


def test_both_fit_the_memory_together(found: tuple[int, OwnPlans]) -> None:
    first, second = found[1].parts
    held = max(len(one.microbatches) for one in first.filled.pipelines)
    used = first.memory.states + held * first.memory.per_microbatch
    assert second.memory.available == first.memory.available - used


def test_kernels_of_two_encoders_never_overlap(found: tuple[int, OwnPlans]) -> None:
    first, second = found[1].parts
    # The second's gaps are the first's schedule, shifted by the time before its step.
    for rank, one in enumerate(second.host.gaps.ranks):
        busy = one.kind == BUSY
        assert busy.any()
        for pipeline in second.filled.pipelines:
            if rank in pipeline.ranks:
                starts = pipeline.forward[:, pipeline.ranks.index(rank)].ravel()
                at = np.searchsorted(one.start, starts, side="right") - 1
                assert not busy[np.maximum(at, 0)].any()
    assert second.host.gaps.step_ns == first.filled.step_ns


def test_what_is_left_is_the_gaps_without_the_kernels() -> None:
    _, one = filled()
    left = left_over(one)
    assert left.step_ns == one.step_ns
    for before, after in zip(one.problem.gaps.ranks, left.ranks, strict=True):
        # No gaps between stretches, from the start of the step to its end.
        assert after.start[0] == 0
        assert after.end[-1] == one.step_ns
        assert (after.start[1:] == after.end[:-1]).all()
        length = {k: int((after.end - after.start)[after.kind == k].sum()) for k in range(4)}
        whole = {k: int((before.end - before.start)[before.kind == k].sum()) for k in range(3)}
        exposed = one.before_ns + one.after_ns
        assert sum(length.values()) == sum(whole.values()) + exposed
        assert length[COMPUTING] <= whole[COMPUTING]
        assert length[COMMUNICATING] <= whole[COMMUNICATING]
        assert length[FREE] <= whole[FREE] + exposed


def test_one_encoder_has_no_plans_of_its_own() -> None:
    with pytest.raises(ValueError, match="own plans are for two or more"):
        scan_each(case_setup("A"), 10**12)
