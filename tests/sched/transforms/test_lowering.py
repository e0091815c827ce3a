"""Lowering: the passes stay, and late collectives go where costs put them."""

import pytest

from counterpoise.sched import Costs, check, lower, schedule, schedules, simulate, unit_costs

NAMES = [s.name for s in schedules()]


@pytest.mark.parametrize("name", NAMES)
def test_lowering_leaves_the_passes_as_they_were(name: str) -> None:
    program = schedule(name, ranks=3, microbatches=6)
    before = {item.kind for row in program.ranks for item in row}
    for old, new in zip(program.ranks, lower(program).ranks, strict=True):
        assert [item for item in new if item.kind in before] == list(old)


@pytest.mark.parametrize("name", [n for n in NAMES if "alg" in n or "naive" in n])
def test_sound_wherever_the_costs_put_the_late_collectives(name: str) -> None:
    program = schedule(name, ranks=4, microbatches=8, inputs=True)
    for output in (1, 30, 300):
        kinds = dict(unit_costs(10, 20, output).pass_ns) | {"IF": 1, "IB": 0}
        for barrier in (0, 50):
            check(lower(program, Costs(kinds, collective_ns={"CS": barrier, "CX": barrier})))


def test_a_continuation_on_the_rank_costs_time_on_its_own_stream_none() -> None:
    program = schedule("1f1b-alg2", ranks=4, microbatches=32)
    costs = unit_costs(10, 20, 3)
    ideal = simulate(program, costs).makespan_ns
    assert simulate(lower(program, costs, continuations=False), costs).makespan_ns == ideal
    assert ideal < simulate(lower(program, costs), costs).makespan_ns < 1.15 * ideal


def test_receives_cannot_be_posted_after_their_use() -> None:
    with pytest.raises(ValueError, match="ahead is -1; give 0 or more"):
        lower(schedule("1f1b", ranks=2, microbatches=2), ahead=-1)


def test_a_program_is_lowered_only_once() -> None:
    with pytest.raises(ValueError, match="lower it only once"):
        lower(lower(schedule("1f1b", ranks=2, microbatches=2)))
