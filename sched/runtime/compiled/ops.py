"""Values and operations: a rank's list of passes, with what each reads, writes and frees."""

from typing import NamedTuple

from ...ir.passes import NO_MICROBATCH, Pass


class Value(NamedTuple):
    """A value that one pass makes and others read: a result, or a buffer for a later pass.

    `name`: the kind of the pass that makes it, "B" for the gradient that B and I both make, the
    barrier's name for what a collective brings, or a buffer's name, such as "activation". `stage`
    and `microbatch` are those of the pass that makes it: what stage 1 receives as its input is the
    value ("F", 0, 3). For barriers the stage is the rank. A tuple, since the executor looks values
    up several times a pass.

    >>> str(Value("F", 0, 3)), str(Value("activation", 1, 3))
    ('0F3', '1activation3')
    """

    name: str
    stage: int
    microbatch: int = NO_MICROBATCH

    def __str__(self) -> str:
        """Return the text form: stage, name, microbatch, as passes are written."""
        return str(Pass(self.stage, self.name, self.microbatch))


class Op(NamedTuple):
    """A pass of a rank with the values that it reads, those that it makes, and those that end here.

    `frees`: of what the rank holds, what no later operation reads. `source`: for a receive, the
    rank that sends; `targets`: for a send, the ranks that receive. `delivered`: when the reads are
    there, by rank, the last operation whose send to it is over (earlier ones are, too).

    >>> op = Op(Pass(1, "F", 3), (Value("F", 0, 3),), (Value("activation", 1, 3),))
    >>> print(op)
    1F3(0F3) -> 1activation3
    """

    what: Pass
    reads: tuple[Value, ...] = ()
    writes: tuple[Value, ...] = ()
    frees: tuple[Value, ...] = ()
    source: int | None = None
    targets: tuple[int, ...] = ()
    delivered: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        """Return a line such as `1F3(0F3) -> 1activation3`, for people who read a list."""
        reads, writes = (", ".join(map(str, values)) for values in (self.reads, self.writes))
        return f"{self.what}({reads})" + (f" -> {writes}" if writes else "")
