"""Find out by when a rank's sends are over, from the messages that come back.

A rank that has waited for a message, and sends one back later, has the first. So when the second
one is there, the first one's send is over, and so are all before it on its channel. This is known
without asking: gloo says that a send is over only to those who wait for it.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

from .ops import Op, Value

Lists = Sequence[Sequence[Op]]


def with_deliveries(lists: Lists) -> list[tuple[Op, ...]]:
    """Return all ranks' operations with `delivered` filled in.

    >>> from counterpoise.sched import schedule
    >>> from .build import compile_program
    >>> program = schedule("1f1b", ranks=2, microbatches=2)
    >>> first, _ = with_deliveries([compile_program(program, rank) for rank in range(2)])
    >>> for at, op in enumerate(first):
    ...     print(at, op.what, *op.delivered)
    0 0F0
    1 0SEND_F0
    2 0RECV_B0
    3 0F1
    4 0SEND_F1
    5 0RECV_B1
    6 0B0 (1, 1)
    7 0B1 (1, 4)
    """
    read = [_first_reads(ops) for ops in lists]
    return [tuple(_filled_in(ops, rank, lists, read)) for rank, ops in enumerate(lists)]


def _filled_in(
    ops: Sequence[Op], rank: int, lists: Lists, read: Sequence[Mapping[Value, int]]
) -> Iterator[Op]:
    found: dict[int, dict[int, int]] = {}
    for target in {target for op in ops for target in op.targets}:
        sends = [at for at, op in enumerate(ops) if target in op.targets]
        answers = [at for at, op in enumerate(lists[target]) if rank in op.targets]
        for at in sends:
            taken = read[target].get(ops[at].reads[0], len(lists[target]))
            for answer in answers[(first := bisect_right(answers, taken)) : first + 1]:
                there = read[rank].get(lists[target][answer].reads[0], len(ops))
                # Later sends overwrite earlier ones, which are over too.
                found.setdefault(there, {})[target] = at
    for at, op in enumerate(ops):
        yield op._replace(delivered=tuple(sorted(found[at].items()))) if at in found else op


def _first_reads(ops: Sequence[Op]) -> dict[Value, int]:
    """Return the first operation that reads each value, and so has waited for it."""
    found: dict[Value, int] = {}
    for at, op in enumerate(ops):
        for value in op.reads:
            found.setdefault(value, at)
    return found
