"""Count what a rank holds while it runs its operations: a property of the list, without times."""

from collections.abc import Iterator, Sequence

from .ops import Op


def live_counts(ops: Sequence[Op], name: str) -> Iterator[int]:
    """Yield how many values of a name are held during each operation.

    A value is held from the start of the operation that writes it to the end of the one that
    frees it, as in the simulator.

    >>> from counterpoise.sched import schedule
    >>> from .build import compile_program
    >>> ops = compile_program(schedule("1f1b", ranks=4, microbatches=8), 1)
    >>> max(live_counts(ops, "activation"))
    3
    """
    held = 0
    for op in ops:
        held += sum(value.name == name for value in op.writes)
        yield held
        held -= sum(value.name == name for value in op.frees)
