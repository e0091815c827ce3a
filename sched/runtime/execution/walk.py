"""The executor: one loop over a rank's operations.

It is a generator that stops where it has to wait, so that what waits is the caller's: the process
group's with a deadline, or the loopback's, which has all ranks in one process. Sends and
collectives are started and looked at again when they are done; only values that a pass reads are
waited for.
"""

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, NamedTuple

from torch import Tensor

from ...ir.kinds import is_kind, kind
from ...ir.passes import Pass
from ...simulation.timeline import Slot
from ..compiled.collectives import Collective
from ..compiled.ops import Op, Value
from ..links.interface import Links, Transfer
from ..parts.interface import ModelPart
from ..parts.step_data import StepData


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


Walk = Generator[Transfer, Tensor | None, None]


@dataclass(slots=True)
class Walker:
    """The surroundings of a walk: all that it needs besides the operations.

    `parts`: by kind of pass. `reduce`: starts the reduction of a stage's gradients. `wait_sends`:
    whether each send is waited for at once, as naive executors do; for tests. `waits`, `measured`:
    where the rank stands, and the passes that it has run, by the monotonic clock.
    """

    parts: Mapping[str, ModelPart]
    links: Links
    collectives: Mapping[str, Collective]
    reduce: Callable[[Pass], None]
    wait_sends: bool = False
    waits: Waits = field(default_factory=Waits)
    measured: list[Slot] = field(default_factory=list)


def walk(ops: Sequence[Op], data: StepData, walker: Walker) -> Walk:
    """Run the operations of one step, yielding every transfer that has to be waited for.

    Send the transfer's result back into the generator. Raises what passes raise.
    """
    held: dict[Value, Any] = {}
    underway: deque[_Underway] = deque()
    for at, op in enumerate(ops):
        walker.waits.at = at
        given: dict[str, Any] = {}
        for value in op.reads:
            item = held[value]
            if isinstance(item, _Underway):
                walker.waits.value = value
                item = held[value] = yield item.transfer
                walker.waits.value = None
            if value.name.startswith("X_") and not op.targets:
                # Edges may bring the results of several passes of one kind.
                item = (*given.get(value.name, ()), item)
            given[value.name] = item
        _run(op, at, given, data, walker, held, underway)
        if walker.wait_sends and op.targets:
            walker.waits.value = op.reads[0]
            yield underway[-1].transfer
            walker.waits.value = None
        for value in op.frees:
            item = held.pop(value)
            if isinstance(item, _Underway):
                underway.append(item)
        while underway and underway[0].transfer.done():
            underway.popleft()
    for item in underway:
        walker.waits.at, walker.waits.value = item.at, item.value
        yield item.transfer
    walker.waits.at, walker.waits.value, walker.waits.done = len(ops), None, True


def _run(
    op: Op,
    at: int,
    given: Mapping[str, Any],
    data: StepData,
    walker: Walker,
    held: dict[Value, Any],
    underway: deque[_Underway],
) -> None:
    """Run one operation whose inputs are there."""
    what = op.what
    if op.targets:
        (value,) = op.reads
        tensor = given[value.name].contiguous()
        for target in op.targets:
            transfer = walker.links.send(tensor, target, value)
            underway.append(_Underway(at, value, transfer, tensor))
    elif op.source is not None:
        (value,) = op.writes
        transfer = walker.links.receive(data.spec(value), op.source, value)
        held[value] = _Underway(at, value, transfer, None)
    elif what.kind in walker.collectives:
        _enter(op, at, given, data, walker, held)
    elif what.kind == "REDUCE_GRAD":
        walker.reduce(what)
    elif is_kind(what.kind) and kind(what.kind).once:
        # UNSHARD, RESHARD and O are the modules' and the training loop's.
        return
    else:
        start = perf_counter_ns()
        made = walker.parts[what.kind].run(what, given)
        walker.measured.append(Slot(what, start, perf_counter_ns()))
        for value in op.writes:
            held[value] = made.get(value.name)


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
