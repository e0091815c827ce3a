"""Compile a program to the operations of one rank, once per program and number of microbatches.

The list says everything that the executor does in a step. What a pass reads follows from the kinds'
needs, the barriers and the edges, the same that checker and simulator read. The last reader of a
value frees it, so the most that a rank holds is a property of the list.

What an edge of the program carries is a value of its own, `X_EF` of an EF or `X_B` of a B: the
gradient of the features is not that of the stage's input.

Where no stage before a boundary is trained, no gradient crosses it: its messages, collectives and
reads are left out on every rank alike (`input_gradient`).

`with_deliveries` finds by when a rank's sends are over. A rank that has waited for a message, and
sends one back later, has the first. So when the second one is there, the first one's send is over,
and so are all before it on its channel. This is known without asking: gloo says that a send is over
only to those who wait for it.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from ..ir.channels import crossing_results
from ..ir.kinds import BACKWARD, Kind, is_kind, kind
from ..ir.program import NO_MICROBATCH, Barrier, Pass, Program
from ..transforms.lowering import lower


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
        """Return the text form, as passes are written."""
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
        """Return a line of a list, to be read."""
        reads, writes = (", ".join(map(str, values)) for values in (self.reads, self.writes))
        return f"{self.what}({reads})" + (f" -> {writes}" if writes else "")


class Collective(NamedTuple):
    """A barrier's collective. `root`: the rank that broadcasts, or that gets the sum."""

    operation: Literal["broadcast", "sum", "gather"]
    root: int
    communicator: str


def collectives(program: Program) -> dict[str, Collective]:
    """Return the collective of each barrier by its name.

    >>> from counterpoise.sched import schedule
    >>> for name, collective in collectives(schedule("1f1b-alg1", ranks=4, microbatches=4)).items():
    ...     print(name, collective.operation, collective.root)
    CX broadcast 3
    CS gather 0
    CG sum 3
    """
    return {barrier.name: _collective(program, barrier) for barrier in program.barriers}


def _collective(program: Program, barrier: Barrier) -> Collective:
    communicator = barrier.communicator or barrier.name
    ends = {"first": program.placement[0], "last": program.placement[-1]}
    if barrier.source in ends:
        return Collective("broadcast", ends[barrier.source], communicator)
    waiting = {where for where, _ in barrier.before}
    if len(waiting) == 1 and (where := waiting.pop()) in ends:
        return Collective("sum", ends[where], communicator)
    return Collective("gather", 0, communicator)


def compile_program(
    program: Program, rank: int, input_gradient: Sequence[bool] | None = None
) -> tuple[Op, ...]:
    """Return a rank's operations in order.

    `program`: lowered or not. `input_gradient`: for each stage whether anything before it is
    trained, so that the gradient of its input is wanted, and one more for the last stage's output;
    all by default. Raises ValueError as `lower` does.

    >>> from counterpoise.sched import schedule
    >>> for op in compile_program(schedule("1f1b", ranks=2, microbatches=1), 1):
    ...     print(op)
    1RECV_F0() -> 0F0
    1F0(0F0) -> 1activation0
    1B0(1activation0) -> 1B0
    1SEND_B0(1B0)
    """
    gradients = tuple(input_gradient or (True,) * (program.stages + 1))
    program = lowered(program)
    sources: dict[Pass, list[Pass]] = {}
    for source, target in program.edges:
        sources.setdefault(target, []).append(source)
    targets: dict[Pass, list[int]] = {}
    for source, there in crossing_results(program):
        targets.setdefault(source, []).append(there)
    row, ends = frozenset(program.ranks[rank]), {"first": 0, "last": program.stages - 1}
    facts = _Facts(program, rank, gradients, sources, targets, row, ends)
    ops = [op for item in program.ranks[rank] if (op := facts.operation(item))]
    read = {value for op in ops for value in op.reads}
    # Results that none reads are left out; collectives end with their value.
    ops = [
        op._replace(writes=tuple(value for value in op.writes if value in read))
        if is_kind(op.what.kind)
        else op
        for op in ops
    ]
    last = {value: at for at, op in enumerate(ops) for value in (*op.writes, *op.reads)}
    ending = (
        dict.fromkeys(value for value in (*op.reads, *op.writes) if last[value] == at)
        for at, op in enumerate(ops)
    )
    return tuple(op._replace(frees=tuple(end)) for op, end in zip(ops, ending, strict=True))


def lowered(program: Program) -> Program:
    """Return the program with messages, unchanged if it has some; do it once for all ranks.

    A program whose stages are all on one rank has none, but its collectives tell that it is.
    """
    barriers = {barrier.name for barrier in program.barriers}
    for item in (item for row in program.ranks for item in row):
        if item.kind[:5] in ("SEND_", "RECV_") or item.kind in barriers:
            return program
    return lower(program)


@dataclass(frozen=True, slots=True)
class _Facts:
    """The facts that the operations of a rank follow from.

    `sources`, `targets`: of the program's edges, by pass the passes whose results it takes, and the
    ranks that it sends its own to. `row`: its own. `ends`: the stages that barriers name.
    """

    program: Program
    rank: int
    input_gradient: tuple[bool, ...]
    sources: Mapping[Pass, Sequence[Pass]]
    targets: Mapping[Pass, Sequence[int]]
    row: frozenset[Pass]
    ends: Mapping[str, int]

    def operation(self, item: Pass) -> Op | None:
        """Return what a pass reads and writes, or None if it is left out."""
        barrier = next((b for b in self.program.barriers if b.name == item.kind), None)
        if barrier is not None:
            return self._collective(item, barrier)
        known = kind(item.kind)
        if known.role in ("send", "receive"):
            return self._message(item, sends=known.role == "send")
        return Op(item, tuple(self._reads(item, known)), tuple(self._writes(item, known)))

    def _message(self, item: Pass, *, sends: bool) -> Op | None:
        """Return the operation of a SEND or RECV: they are about the value of one pass."""
        name, ranks = item.kind[5:], self.program.placement
        if name.startswith("X_"):  # along edges; one SEND serves all ranks
            value = Value(name, item.stage, item.microbatch)
            source = replace(item, kind=name.removeprefix("X_"))
            if sends:
                return Op(item, reads=(value,), targets=tuple(self.targets[source]))
            return Op(item, writes=(value,), source=self.program.rank_of(source))
        step = 1 if name == "F" else -1
        # SEND is named by the stage that made the value, RECV by the one that uses it.
        maker, peer = (item.stage, item.stage + step) if sends else (item.stage - step,) * 2
        value = _result(name, maker, item.microbatch)
        if not self._flows(value):
            return None
        if sends:
            return Op(item, reads=(value,), targets=(ranks[peer],))
        return Op(item, writes=(value,), source=ranks[peer])

    def _collective(self, item: Pass, barrier: Barrier) -> Op | None:
        """Return a rank's entry into a collective: it reads the rank's contribution, if any."""
        if not self._carries(barrier):
            return None
        source_kind = "C" if barrier.source == "barrier" else barrier.after
        stage, holder = self.rank, self.rank
        if barrier.source in self.ends:
            stage = self.ends[barrier.source]
            holder = self.program.placement[stage]
        reads = (_result(source_kind, stage, item.microbatch),) if holder == self.rank else ()
        return Op(item, reads, (Value(barrier.name, self.rank, item.microbatch),))

    def _reads(self, item: Pass, known: Kind) -> Iterable[Value]:
        """Yield what a compute pass needs: buffers, results, what edges and collectives bring."""
        stage, microbatch = item.stage, item.microbatch
        # Buffers that the pass ends, and some that stay.
        for name in (*(name for name in known.frees if name not in known.takes), *known.reads):
            yield Value(name, stage, microbatch)
        for need in known.needs:
            # What a pass of the same stage leaves behind is read as a buffer.
            is_buffer = need.where == "same" and any(_buffers(kind(name)) for name in need.kinds)
            if is_buffer and not need.result:
                continue
            # What is not required is waited for where it is in the rank's list.
            if not (need.required or any(replace(item, kind=k) in self.row for k in need.kinds)):
                continue
            there = stage + {"same": 0, "previous": -1, "next": 1}[need.where]
            if 0 <= there < self.program.stages or known.scope == "rank":
                value = _result(need.kinds[0], there, microbatch)
                if self._flows(value):
                    yield value
        for source in self.sources.get(item, ()):
            yield Value(f"X_{source.kind}", source.stage, source.microbatch)
        for barrier in self.program.barriers:
            at = [self.ends.get(w, stage) for w, name in barrier.before if name == item.kind]
            if stage in at and self._carries(barrier):
                yield Value(barrier.name, self.rank, microbatch)

    def _writes(self, item: Pass, known: Kind) -> Iterable[Value]:
        yield from (Value(b, item.stage, item.microbatch) for b in _buffers(known))
        result = _result(item.kind, item.stage, item.microbatch)
        if item.kind != "W" and self._flows(result):
            yield result
        yield Value(f"X_{item.kind}", item.stage, item.microbatch)

    def _flows(self, value: Value) -> bool:
        """Return whether a pass reads a value: gradients of inputs are not always computed."""
        return value.name != "B" or self.input_gradient[value.stage]

    def _carries(self, barrier: Barrier) -> bool:
        """Return whether a barrier carries something: one that carries gradients may not."""
        if barrier.after in BACKWARD and barrier.source in self.ends:
            return self.input_gradient[self.ends[barrier.source]]
        if any(name in BACKWARD for _, name in barrier.before):
            return self.input_gradient[-1]
        return True


def _result(kind: str, stage: int, microbatch: int) -> Value:
    """Return the value that passes of a kind make: B and I make the same gradient."""
    return Value("B" if kind == "I" else kind, stage, microbatch)


def _buffers(known: Kind) -> tuple[str, ...]:
    """Return the buffers that a pass leaves behind when it ends."""
    taken = tuple(name for name in known.takes if name not in known.frees)
    return (*taken, *known.leaves)


Lists = Sequence[Sequence[Op]]


def with_deliveries(lists: Lists) -> list[tuple[Op, ...]]:
    """Return all ranks' operations with `delivered` filled in.

    >>> from counterpoise.sched import schedule
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
    # The first operation that reads each value, and so has waited for it.
    read = [
        {value: at for at in reversed(range(len(ops))) for value in ops[at].reads} for ops in lists
    ]
    return [tuple(_add_deliveries(ops, rank, lists, read)) for rank, ops in enumerate(lists)]


def _add_deliveries(
    ops: Sequence[Op], rank: int, lists: Lists, read: Sequence[Mapping[Value, int]]
) -> Iterator[Op]:
    delivered: dict[int, dict[int, int]] = {}
    for target in sorted({target for op in ops for target in op.targets}):
        sends = [at for at, op in enumerate(ops) if target in op.targets]
        answers = [at for at, op in enumerate(lists[target]) if rank in op.targets]
        for at in sends:
            taken = read[target].get(ops[at].reads[0], len(lists[target]))
            for answer in answers[(first := bisect_right(answers, taken)) : first + 1]:
                there = read[rank].get(lists[target][answer].reads[0], len(ops))
                # Later sends overwrite earlier ones, which are over too.
                delivered.setdefault(there, {})[target] = at
    for at, op in enumerate(ops):
        yield op._replace(delivered=tuple(sorted(delivered[at].items()))) if at in delivered else op
