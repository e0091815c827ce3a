"""Passes and programs: the work of every pipeline rank, in order, and its text form.

The forward of stage 2 for microbatch 0 is written `2F0`. Stages are numbered in model order (as
torch numbers them): with 4 ranks and 2 chunks per rank there are 8 stages, and the program's
placement gives the rank and the chunk of each. Vocabulary and encoder passes are divided over the
ranks instead of the model: their stage is the number of the rank that holds the shard.

A program consists of every rank's list of passes, the rank that holds each stage, the barriers at
which all ranks meet, and edges: what passes need besides the needs of their kinds, such as the
features that an encoder makes for the language model. It has no times: `simulate` computes them
from costs. `check` proves that a program is sound. Its text form is a grid, one row per rank, and
round-trips.

Placements: in the loop form rank r holds stages r, r + p, r + 2p ... (interleaved 1F1B); in the V
form the second chunk runs back, so rank r of p holds stages r and 2p - 1 - r.
"""

import re
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple

from .kinds import is_staged

NO_MICROBATCH = -1
_TEXT = re.compile(r"(\d+)([A-Z_]+?)(\d*)")


@dataclass(frozen=True, slots=True, order=True)
class Pass:
    """One pass; `microbatch` is NO_MICROBATCH for work done once a step, such as the optimizer.

    >>> str(Pass(2, "F", 0))
    '2F0'
    """

    stage: int
    kind: str
    microbatch: int = NO_MICROBATCH

    def __str__(self) -> str:
        """Return the text form; `parse_pass` reads it."""
        return format_pass(self)


def format_pass(pass_: Pass) -> str:
    """Return a pass as stage, kind, microbatch.

    >>> format_pass(Pass(stage=12, kind="SEND_F", microbatch=7))
    '12SEND_F7'
    >>> format_pass(Pass(stage=0, kind="O"))
    '0O'
    """
    tail = "" if pass_.microbatch == NO_MICROBATCH else pass_.microbatch
    return f"{pass_.stage}{pass_.kind}{tail}"


def parse_pass(text: str) -> Pass:
    """Return the pass of a text form. Raises ValueError for anything else.

    The kind need not be registered; `check` reports unknown kinds.

    >>> parse_pass("2F0")
    Pass(stage=2, kind='F', microbatch=0)
    >>> parse_pass("F0")
    Traceback (most recent call last):
    ...
    ValueError: 'F0' is not a pass; write stage, kind, microbatch, such as 2F0
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a pass; write stage, kind, microbatch, such as 2F0")
    stage, kind, microbatch = match.groups()
    return Pass(int(stage), kind, int(microbatch) if microbatch else NO_MICROBATCH)


Where = Literal["every", "first", "last", "barrier"]
Shape = Literal["loop", "v"]


@dataclass(frozen=True, slots=True)
class Barrier:
    """A collective of all ranks with stages, once a microbatch, on a communicator of its own.

    Args:
        name: Of the barrier, which is the kind of its passes in a lowered program.
        after: The kind of the passes, or the barrier, at whose end it starts.
        source: Where these have to have ended: on "every" rank, at the "first" or the "last" stage;
            "barrier" if `after` is one.
        before: (where, kind) of the passes that wait for it.
        blocking: True if the ranks wait, too; default False: it runs beside the passes.
        communicator: The name of the communicator it runs on; default: one of its own.

    >>> str(Barrier("CX", "F", "last", (("every", "S"),)))
    'CX = last F -> every S'
    """

    name: str
    after: str
    source: Where
    before: tuple[tuple[Where, str], ...]
    blocking: bool = False
    communicator: str = ""

    def __str__(self) -> str:
        """Return the text form; `parse_barrier` reads it."""
        targets = ", ".join(f"{where} {kind}" for where, kind in self.before)
        tail = f" on {self.communicator}" if self.communicator else ""
        tail += " (blocking)" if self.blocking else ""
        return f"{self.name} = {self.source} {self.after} -> {targets}{tail}"


def parse_barrier(text: str) -> Barrier:
    """Return the barrier of a text form. Raises ValueError for anything else.

    >>> parse_barrier("CG = barrier CS -> last B, last I").before
    (('last', 'B'), ('last', 'I'))
    """
    places = "every|first|last"
    match = re.fullmatch(
        rf"([A-Z_]+) = ({places}|barrier) ([A-Z_]+) -> "
        rf"((?:{places}) [A-Z_]+(?:, (?:{places}) [A-Z_]+)*)"
        r"(?: on ([A-Z_]+))?( \(blocking\))?",
        text.strip(),
    )
    if match is None:
        raise ValueError(f"{text!r} is not a barrier; write one like CS = every S -> every T")
    name, source, after, targets, communicator, blocking = match.groups()
    pairs = tuple(tuple(item.split()) for item in targets.split(", "))
    return Barrier(name, after, source, pairs, blocking is not None, communicator or "")  # type: ignore[arg-type]


class Edge(NamedTuple):
    """A pass (`target`) that waits for the result of another one (`source`), on any two ranks.

    Their microbatches may differ: encoders number the microbatches before the language model's
    order is decided.

    >>> str(Edge(Pass(1, "EF", 3), Pass(0, "F", 2)))
    '1EF3->0F2'
    """

    source: Pass
    target: Pass

    def __str__(self) -> str:
        """Return the text form; `parse_edge` reads it."""
        return f"{self.source}->{self.target}"


def parse_edge(text: str) -> Edge:
    """Return the edge of a text form. Raises ValueError for anything else.

    >>> parse_edge("0B2->1EB3").target
    Pass(stage=1, kind='EB', microbatch=3)
    """
    source, arrow, target = text.partition("->")
    if not arrow:
        raise ValueError(f"{text!r} is not an edge; write one like 1EF3->0F2")
    return Edge(parse_pass(source), parse_pass(target))


@dataclass(frozen=True, slots=True)
class Program:
    """Every rank's passes in order.

    Args:
        ranks: The passes of each rank, in order.
        placement: The rank that holds each stage.
        microbatches: Their number in a step; they are numbered from 0.
        barriers: The collectives between passes; default: none.
        name: Of the schedule; default "".
        edges: What passes need besides the needs of their kinds; default: nothing.
    """

    ranks: tuple[tuple[Pass, ...], ...]
    placement: tuple[int, ...]
    microbatches: int
    barriers: tuple[Barrier, ...] = ()
    name: str = ""
    edges: tuple[Edge, ...] = ()

    @property
    def members(self) -> tuple[int, ...]:
        """Return the ranks that meet at barriers: those with stages; others only have encoders."""
        return tuple(sorted(set(self.placement)))

    @property
    def stages(self) -> int:
        """Return the number of stages, over all ranks and chunks."""
        return len(self.placement)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages that a rank holds, in model order: its chunks 0, 1, ..."""
        return tuple(s for s, holder in enumerate(self.placement) if holder == rank)

    def chunk(self, stage: int) -> int:
        """Return the number of a stage among the chunks of its rank."""
        return self.placement[:stage].count(self.placement[stage])

    def rank_of(self, pass_: Pass) -> int:
        """Return the rank that runs a pass, -1 if there is no such stage or rank.

        (A RECV of an edge's message is elsewhere: it is named by the pass whose result it brings.)
        """
        if is_staged(pass_.kind):
            return self.placement[pass_.stage] if pass_.stage < self.stages else -1
        return pass_.stage if pass_.stage < len(self.ranks) else -1

    @property
    def passes(self) -> int:
        """Return the number of passes, over all ranks."""
        return sum(map(len, self.ranks))

    def __str__(self) -> str:
        """Return the grid; `parse_program` reads it."""
        return format_program(self)


def place(ranks: int, chunks: int = 1, shape: Shape = "loop") -> tuple[int, ...]:
    """Return the rank of every stage. Raises ValueError for sizes below one or a V of odd chunks.

    >>> place(3, 2)
    (0, 1, 2, 0, 1, 2)
    >>> place(3, 2, "v")
    (0, 1, 2, 2, 1, 0)
    """
    if ranks < 1 or chunks < 1:
        raise ValueError(f"got {ranks} ranks and {chunks} chunks; give at least one of each")
    if shape == "v" and chunks != 2:
        raise ValueError(f"the V form has 2 chunks a rank, got {chunks}; use the loop form")
    row = tuple(range(ranks))
    return row + row[::-1] if shape == "v" else row * chunks


def format_program(program: Program) -> str:
    r"""Return a program as a header and a grid.

    >>> program = Program(((Pass(0, "F", 0), Pass(0, "B", 0)),), (0,), 1, name="tiny")
    >>> print(format_program(program))
    schedule: tiny
    placement: 0
    microbatches: 1
    0: 0F0 0B0
    >>> parse_program(str(program)) == program
    True
    """
    head = [f"schedule: {program.name}"] if program.name else []
    head.append("placement: " + " ".join(map(str, program.placement)))
    head.append(f"microbatches: {program.microbatches}")
    head += [f"barrier: {barrier}" for barrier in program.barriers]
    # A line has the edges that differ in their microbatches alone.
    runs = groupby(
        program.edges, lambda e: (e.source.stage, e.source.kind, e.target.stage, e.target.kind)
    )
    head += [f"edges: {' '.join(map(str, run))}" for _, run in runs]
    # All cells are as wide as the widest, so that columns line up.
    rows = [[str(pass_) for pass_ in row] for row in program.ranks]
    width = max((len(cell) for row in rows for cell in row), default=0)
    label = len(str(len(rows) - 1))
    grid = [
        f"{rank:>{label}}: " + " ".join(cell.ljust(width) for cell in row)
        for rank, row in enumerate(rows)
    ]
    return "\n".join(line.rstrip() for line in head + grid)


def parse_program(text: str) -> Program:
    """Return the program of a text form. Raises ValueError naming the line that is wrong."""
    head: dict[str, str] = {}
    barriers: list[Barrier] = []
    edges: list[Edge] = []
    rows: list[tuple[Pass, ...]] = []
    for number, line in enumerate(text.strip().splitlines(), start=1):
        key, colon, value = (part.strip() for part in line.partition(":"))
        try:
            if key == "barrier":
                barriers.append(parse_barrier(value))
            elif key == "edges":
                edges.extend(map(parse_edge, value.split()))
            elif key in ("schedule", "placement", "microbatches"):
                head[key] = value
            elif colon and key == str(len(rows)):  # rows come in the order of ranks
                rows.append(tuple(map(parse_pass, value.split())))
            elif line.strip():
                raise ValueError(f"expected a header or row {len(rows)}:, got {line.strip()!r}")
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    placement = tuple(_integers("placement", head))
    microbatches = _integers("microbatches", head)[0]
    name = head.get("schedule", "")
    return Program(tuple(rows), placement, microbatches, tuple(barriers), name, tuple(edges))


def _integers(key: str, head: dict[str, str]) -> list[int]:
    if key not in head:
        raise ValueError(f"the program has no line {key}:; add one, see format_program")
    try:
        return [int(word) for word in head[key].split() or [""]]
    except ValueError:
        raise ValueError(f"{key}: {head[key]!r} must be whole numbers") from None
