"""The executor: one loop over a rank's operations.

It is a generator that stops where it has to wait, so that what waits is the caller's: the process
group's with a deadline, or a test's, which has all ranks in one process. Only values that a
pass reads are waited for. What is sent is kept until a message back proves that it has arrived, or
until the next one goes the same way and finds it gone.

Encoder passes may run inside one of the language model, at points: its module has started a
collective, would wait for it now, and calls `offer()`. What runs then is what the rank's list has
behind the running pass, up to the language model's next one, as far as its inputs are there: in the
list's order, so that gradients are summed as without. Sends keep their places in the list, and so
the order of messages. Nothing waits in a point.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

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


# For what is over already.
_AT_ONCE_S = 1.0
# By the rank that gets a message, or the kind of the collective.
Underway = defaultdict[int | str, deque[_Underway]]
Walk = Generator[Transfer, Tensor | None, None]


@dataclass(slots=True)
class Walker:
    """The surroundings of a walk: all that it needs besides the operations.

    `parts`: by kind of pass. `reduce`: starts the reduction of a stage's gradients. `wait_sends`:
    whether each send is waited for at once, as naive executors do; for tests. `measured`: the
    passes that were run, by the monotonic clock; those inside of another one stand behind it, with
    what is left of its time. `underway`: what cannot be dropped yet. `took`: by kind, the ns that
    encoder passes took last (see `offer`), None where they run inside of no others.
    """

    parts: Mapping[str, ModelPart]
    links: Links
    collectives: Mapping[str, Collective]
    reduce: Callable[[Pass], None]
    wait_sends: bool = False
    waits: Waits = field(default_factory=Waits)
    measured: list[Slot] = field(default_factory=list)
    underway: Underway = field(default_factory=lambda: defaultdict(deque))
    took: dict[str, int] | None = field(default_factory=dict)


def walk(ops: Sequence[Op], data: StepData, walker: Walker) -> Walk:
    """Run the operations of a step, yielding every transfer to wait for, to be sent its result."""
    held: dict[Value, Any] = {}
    early: set[int] = set()
    waits, underway = walker.waits, walker.underway
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
            if at not in early:
                _receive(op, at, data, walker, held)
        elif op.targets:
            sent = _send(op, at, held[op.reads[0]], walker)
            if walker.wait_sends:
                waits.value = op.reads[0]
                yield sent
                waits.value = None
        elif at not in early:
            early |= _run(ops, at, data, walker, held)
        for value in op.frees:
            if type(item := held.pop(value)) is _Underway:
                _keep(item, op.what.kind, underway)
    for item in [item for queue in underway.values() for item in queue]:
        waits.at, waits.value = item.at, item.value
        yield item.transfer
    underway.clear()
    waits.at, waits.value, waits.done = len(ops), None, True


def _keep(item: _Underway, where: int | str, underway: Underway) -> None:
    """Keep a transfer that nothing here reads, and drop those before it that are over."""
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


def _run(
    ops: Sequence[Op], at: int, data: StepData, walker: Walker, held: dict[Value, Any]
) -> set[int]:
    """Run a pass, or enter a collective; return the numbers of the passes run inside of it."""
    op = ops[at]
    pass_ = op.what
    if pass_.kind in walker.parts:
        if walker.took is None or pass_.kind[:2] in ("EF", "EB"):
            walker.measured.append(_run_pass(op, walker, held))
            return set()
        took = walker.took
        posted, behind = _behind(ops, at, walker)
        for number in posted:
            _receive(ops[number], number, data, walker, held)
        inner: list[Slot] = []

        def run_next(left_ns: int | None) -> int | None:
            inner_op = ops[behind[len(inner)]] if len(inner) < len(behind) else None
            if inner_op is None or not _has_all(inner_op, held):
                return None
            if left_ns is not None and 2 * left_ns < took.get(inner_op.what.kind, 0):
                return None
            inner.append(_run_pass(inner_op, walker, held))
            took[inner_op.what.kind] = inner[-1].end_ns - inner[-1].start_ns
            return took[inner_op.what.kind]

        with points(run_next):
            slot = _run_pass(op, walker, held)
        # Rows of passes do not overlap, so each stands where the time of those before it ends.
        until = slot.end_ns - sum(inside.end_ns - inside.start_ns for inside in inner)
        walker.measured.append(slot._replace(end_ns=until))
        for inside in inner:
            start, until = until, until + inside.end_ns - inside.start_ns
            walker.measured.append(Slot(inside.what, start, until))
        return {*posted, *behind[: len(inner)]}
    if pass_.kind in walker.collectives:
        _enter(op, at, _read_values(op, held), data, walker, held)
    elif pass_.kind == "REDUCE_GRAD":
        walker.reduce(pass_)
    elif not kind(pass_.kind).once:
        # UNSHARD, RESHARD and O are the modules' and the training loop's.
        known = ", ".join(sorted(walker.parts))
        raise ValueError(f"no part of the model runs {pass_}; the parts of this rank run {known}")
    return set()


def _run_pass(op: Op, walker: Walker, held: dict[Value, Any]) -> Slot:
    reads = _read_values(op, held)
    start = perf_counter_ns()
    writes = walker.parts[op.what.kind].run_pass(op.what, reads)
    slot = Slot(op.what, start, perf_counter_ns())
    for value in op.writes:
        held[value] = writes.get(value.name)
    return slot


def _receive(op: Op, at: int, data: StepData, walker: Walker, held: dict[Value, Any]) -> None:
    (value,) = op.writes
    assert op.source is not None
    transfer = walker.links.receive(data.spec(value), op.source, value)
    held[value] = _Underway(at, value, transfer, None)


def _behind(ops: Sequence[Op], at: int, walker: Walker) -> tuple[list[int], list[int]]:
    """Return receives to post with a pass, and the encoder passes behind it, before the next."""
    receives, posted, encoder_passes = list[int](), list[int](), list[int]()
    for number in range(at + 1, len(ops)):
        op = ops[number]
        if op.what.kind[:2] in ("EF", "EB"):
            encoder_passes.append(number)
            posted, receives = posted + receives, []
        elif op.what.kind in walker.parts:
            break
        elif op.source is not None:
            receives.append(number)
    return posted, encoder_passes


def _has_all(op: Op, held: dict[Value, Any]) -> bool:
    """Return whether all that a pass reads is there, and take what has arrived."""
    for value in op.reads:
        if value not in held:
            return False
        if type(item := held[value]) is _Underway:
            item = held[value] = item._replace(transfer=item.transfer.watched())
            if not item.transfer.done():
                return False
            held[value] = item.transfer.wait(_AT_ONCE_S)
    return True


def _read_values(op: Op, held: Mapping[Value, Any]) -> dict[str, Any]:
    """Return what a pass reads, by name."""
    reads: dict[str, Any] = {}
    for value in op.reads:
        name, item = value.name, held[value]
        # Edges may bring the results of several passes of one kind.
        reads[name] = (*reads.get(name, ()), item) if name.startswith("X_") else item
    return reads


def _enter(
    op: Op,
    at: int,
    reads: Mapping[str, Any],
    data: StepData,
    walker: Walker,
    held: dict[Value, Any],
) -> None:
    """Enter a barrier's collective; a contribution of None, the same everywhere, leaves it out."""
    (value,) = op.writes
    tensor = reads[op.reads[0].name] if op.reads else None
    if op.reads and tensor is None:
        held[value] = None
        return
    spec, collective = data.spec(value), walker.collectives[op.what.kind]
    if tensor is not None:
        precision = spec.dtype if collective.operation == "broadcast" else tensor.dtype
        tensor = tensor.to(precision).contiguous()
    transfer = walker.links.enter(collective, tensor, spec, value)
    held[value] = _Underway(at, value, transfer, tensor)


# run_next(ns left, if known) -> ns that a pass took, None if none was run
RunNext = Callable[[int | None], int | None]


# Of the pass that runs in this process. Backward passes may be in another thread, autograd's.
_here: list[RunNext] = []


@contextmanager
def points(run_next: RunNext) -> Iterator[None]:
    """Let the points of the pass that runs in the block run others by `run_next`."""
    _here.append(run_next)
    try:
        yield
    finally:
        _here.pop()


def offer(wait_ns: int | None = None) -> None:
    """Let encoder passes run inside the running pass of the language model.

    Called by a stage's module, after a collective or a copy has been started and before it is
    waited for. `wait_ns`: how long the wait takes, if that is known: passes run as long as most of
    what the next one took the last time fits; else one is run. On CUDA these passes are launched on
    the current stream.
    """
    if not _here:
        return
    # What a checkpoint of the stage keeps, or computes again, is its own tensors alone.
    run_next, left = _here.pop(), wait_ns
    try:
        with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            while (took := run_next(left)) is not None and left is not None:
                left -= took
    finally:
        _here.append(run_next)
