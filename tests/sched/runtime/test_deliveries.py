"""What is called delivered has been read by then, in any order in which ranks may run."""

import random
from collections.abc import Sequence

import pytest

from counterpoise.sched import schedule, schedules
from counterpoise.sched.runtime.compiled import Op, compile_program, with_deliveries

NAMES = [known.name for known in schedules()]


def lists_of(name: str, ranks: int, microbatches: int) -> list[tuple[Op, ...]]:
    program = schedule(name, ranks=ranks, microbatches=microbatches)
    return with_deliveries([compile_program(program, rank) for rank in range(ranks)])


def arrived(lists: Sequence[Sequence[Op]], places: Sequence[int], rank: int, op: Op) -> bool:
    """Whether everything that an operation reads from other ranks has been sent."""
    sources = {value: o.source for o in lists[rank] if o.source is not None for value in o.writes}
    for value in op.reads:
        if value in sources:
            sent = lists[sources[value]][: places[sources[value]]]
            if not any(value in other.reads and rank in other.targets for other in sent):
                return False
    return True


def assert_read(lists: Sequence[Sequence[Op]], places: Sequence[int], rank: int, op: Op) -> None:
    for target, last in op.delivered:
        seen = {value for other in lists[target][: places[target]] for value in other.reads}
        # Channels deliver in order: what was read last was there after all before it.
        assert lists[rank][last].reads[0] in seen


@pytest.mark.parametrize("name", NAMES)
def test_what_is_called_delivered_has_been_read(name) -> None:
    lists, draw = lists_of(name, 4, 8), random.Random(name)
    places, told = [0] * 4, 0
    while ready := [
        rank
        for rank, at in enumerate(places)
        if at < len(lists[rank]) and arrived(lists, places, rank, lists[rank][at])
    ]:
        rank = draw.choice(ready)
        op = lists[rank][places[rank]]
        assert_read(lists, places, rank, op)
        told += len(op.delivered)
        places[rank] += 1
    assert places == [len(ops) for ops in lists]
    assert told


def held_at_most(ops: Sequence[Op]) -> int:
    """The most sends of a rank at once that are not known to be over."""
    open_sends: list[tuple[int, int]] = []
    most = 0
    for at, op in enumerate(ops):
        for target, last in op.delivered:
            open_sends = [(t, a) for t, a in open_sends if t != target or a > last]
        open_sends += [(target, at) for target in op.targets]
        most = max(most, len(open_sends))
    return most


@pytest.mark.parametrize("microbatches", [8, 64])
@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_held_sends_do_not_grow_with_the_number_of_microbatches(name, microbatches) -> None:
    for rank, ops in enumerate(lists_of(name, 4, microbatches)):
        # Those of the warm-up, and one each way.
        assert held_at_most(ops) <= 4 - rank + 1
