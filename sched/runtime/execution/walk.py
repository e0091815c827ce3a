"""The executor: one loop over a rank's operations.

It is a generator that stops where it has to wait, so that what waits is the caller's: the process
group's with a deadline, or a test's, which has all ranks in one process. Only values that a
pass reads are waited for. What is sent is kept until a message back proves that it has arrived, or
until the next one goes the same way and finds it gone.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, NamedTuple

from torch import Tensor

from ...ir.kinds import kind
from ...ir.program import Pass
from ...simulation.timeline import Slot
from ..compiled import Collective, Op, Value
from ..links.process_groups import Links, Transfer
from ..parts import ModelPart, StepData


@dataclass(slots=True)
class Waits:
    """The place of a rank: the operation that it is at, and the value that it waits for, if any.

    `done`: whether it has run all of the step's operations.
    """

    at: int = 0
    value: Value | None = None
    done: bool = False


class _Underway(NamedTuple):
    """A transfer that the rank gives to, with the operation that started it."""

    at: int
    value: Value
    transfer: Transfer
    # Kept until the transfer is done: its memory is being read.
    tensor: Tensor | None


# By the rank that gets a message, or the kind of the collective.
Underway = defaultdict[int | str, deque[_Underway]]
Walk = Generator[Transfer, Tensor | None, None]


@dataclass(slots=True)
class Walker:
    """The surroundings of a walk: all that it needs besides the operations.

    `parts`: by kind of pass. `reduce`: starts the reduction of a stage's gradients. `wait_sends`:
    whether each send is waited for at once, as naive executors do; for tests. `waits`, `measured`:
    where the rank stands, and the passes that it has run, by the monotonic clock. `underway`: what
    it gives and cannot drop yet.
    """

    parts: Mapping[str, ModelPart]
    links: Links
    collectives: Mapping[str, Collective]
    reduce: Callable[[Pass], None]
    wait_sends: bool = False
    waits: Waits = field(default_factory=Waits)
    measured: list[Slot] = field(default_factory=list)
    underway: Underway = field(default_factory=lambda: defaultdict(deque))


def walk(ops: Sequence[Op], data: StepData, walker: Walker) -> Walk:
    """Run the operations of one step, yielding every transfer that has to be waited for.

    Send the transfer's result back into the generator. Raises what passes raise.
    """
    held: dict[Value, Any] = {}
    waits, underway, links = walker.waits, walker.underway, walker.links
    for at, op in enumerate(ops):
        waits.at = at
        for value in op.reads:
            if type(item := held[value]) is _Underway:
                waits.value = value
                held[value] = yield item.transfer
                waits.value = None
        # The reads prove that these sends have arrived.
        for target, last in op.delivered:
            queue = underway[target]
            while queue and queue[0].at <= last:
                yield queue.popleft().transfer
        # Messages come first: they are most of the operations.
        if op.source is not None:
            (value,) = op.writes
            transfer = links.receive(data.spec(value), op.source, value)
            held[value] = _Underway(at, value, transfer, None)
        elif op.targets:
            sent = _send(op, at, held[op.reads[0]], walker)
            if walker.wait_sends:
                waits.value = op.reads[0]
                yield sent
                waits.value = None
        else:
            _run(op, at, data, walker, held)
        for value in op.frees:
            if type(item := held.pop(value)) is _Underway:
                _keep(item, op.what.kind, underway)
    for item in [item for queue in underway.values() for item in queue]:
        waits.at, waits.value = item.at, item.value
        yield item.transfer
    underway.clear()
    waits.at, waits.value, waits.done = len(ops), None, True


def _keep(item: _Underway, where: int | str, underway: Underway) -> None:
    """Keep a transfer that nobody here reads, and drop those before it that are over."""
    queue = underway[where]
    while queue and queue[0].transfer.done():
        queue.popleft()
    queue.append(item)


def _send(op: Op, at: int, tensor: Tensor, walker: Walker) -> Transfer:
    """Start to send to all ranks that an operation sends to, and return the last transfer."""
    (value,) = op.reads
    tensor = tensor.contiguous()
    for target in op.targets:
        transfer = walker.links.send(tensor, target, value)
        _keep(_Underway(at, value, transfer, tensor), target, walker.underway)
    return transfer


def _run(op: Op, at: int, data: StepData, walker: Walker, held: dict[Value, Any]) -> None:
    """Run a pass whose inputs are there, or enter a collective."""
    what = op.what
    if (part := walker.parts.get(what.kind)) is not None:
        given = _given(op, held)
        start = perf_counter_ns()
        made = part.run_pass(what, given)
        walker.measured.append(Slot(what, start, perf_counter_ns()))
        for value in op.writes:
            held[value] = made.get(value.name)
    elif what.kind in walker.collectives:
        _enter(op, at, _given(op, held), data, walker, held)
    elif what.kind == "REDUCE_GRAD":
        walker.reduce(what)
    elif not kind(what.kind).once:
        # UNSHARD, RESHARD and O are the modules' and the training loop's.
        known = ", ".join(sorted(walker.parts))
        raise ValueError(f"no part of the model runs {what}; the parts of this rank run {known}")


def _given(op: Op, held: Mapping[Value, Any]) -> dict[str, Any]:
    """Return what a pass reads, by name."""
    found: dict[str, Any] = {}
    for value in op.reads:
        name, item = value.name, held[value]
        # Edges may bring the results of several passes of one kind.
        found[name] = (*found.get(name, ()), item) if name.startswith("X_") else item
    return found


def _enter(
    op: Op,
    at: int,
    given: Mapping[str, Any],
    data: StepData,
    walker: Walker,
    held: dict[Value, Any],
) -> None:
    """Enter a barrier's collective; a contribution of None, the same everywhere, leaves it out."""
    (value,) = op.writes
    tensor = given[op.reads[0].name] if op.reads else None
    if op.reads and tensor is None:
        held[value] = None
        return
    spec, collective = data.spec(value), walker.collectives[op.what.kind]
    if tensor is not None:
        precision = spec.dtype if collective.operation == "broadcast" else tensor.dtype
        tensor = tensor.to(precision).contiguous()
    transfer = walker.links.enter(collective, tensor, spec, value)
    held[value] = _Underway(at, value, transfer, tensor)
