"""A job's pool of workers: gives parts of a run's tasks, and knows who keeps what was made.

Theory of operation. A task of the run is divided into parts, which are queued, and given to the
worker that would end each first. What is made of a part its worker keeps; when all parts of a task
are made, the run gets a Made whose batch is a ticket, which says where the pieces are, until it is
freed. Where a worker is lost, others get its parts, and make again, in place, what it kept.

A sample that kills workers is found by giving suspects alone: those of the part that was in work
when a worker was lost. Whoever is made alone without a death is none.

Events and the time come in, messages are taken out; see Tasks of run/tasks for the run's side.
"""

import sys
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

from ..run.tasks import LOAD, Killed
from .giving import PartQueue
from .messages import (
    BATCH,
    COSTS,
    SAMPLES,
    DoPart,
    DropParts,
    FreeParts,
    FromWorker,
    KeepOnly,
    PartBroken,
    PartMade,
    PartMeasured,
    PoolBeat,
    ToWorker,
)  # fmt: skip
from .parts import Part, PartFailed, PoolTask, divide, joined_made, joined_measured
from .tickets import KeptPiece, Ticket
from .workers import PoolWorker

# A worker that is not heard for this long is lost.
DEAD_S = 6.0
# A sample of which this many workers have died is given up.
MOST_DEATHS = 3
# The bit of a task's `asked` that says that the first good sample is the batch; see Load.packed.
_SPARE = 1 << 3
# Bits of a part's number below its pool's generation.
GENERATION = 32
# Beats in a row that show that a message was lost.
UNLIKE = 3


class Pool:
    """See above. collates: whether workers make batches; else a trainer does, of samples."""

    most_held = sys.maxsize

    def __init__(self, lease_s: float, collates: bool, generation: int = 0) -> None:
        """lease_s: how long a worker may take for one sample.

        generation: greater than that of a pool before, whose parts workers may still answer.
        """
        self._lease_s, self._collates = lease_s, collates
        self.workers: dict[bytes, PoolWorker] = {}
        self._tasks: dict[int, PoolTask] = {}  # those that are not freed
        self._parts: dict[int, Part] = {}
        self._queue = PartQueue()
        self._homes: dict[int, bytes] = {}  # who keeps a sample that was loaded to measure it
        self._last = generation << GENERATION
        self._results: deque[tuple[int, Any]] = deque()
        self._deaths: Counter[int] = Counter()
        self._out: list[tuple[bytes, ToWorker]] = []
        self._renewed: list[Ticket] = []
        self._held = self._under_way = 0
        self._now = 0.0

    # --- what a run asks

    @property
    def most(self) -> int:
        """How many tasks may be under way: one more as long as workers have room."""
        return self._under_way + (len(self._queue) < len(self.workers) and bool(self.workers))

    def held_bytes(self, made: int, each: int) -> int:  # noqa: ARG002
        """Return the bytes that workers keep."""
        return self._held

    def submit(self, number: int, task: list[int]) -> None:
        """Take a task, and give parts of it."""
        kind, _, asked, *indexes = task
        whole = self._tasks[number] = PoolTask(number, task, kind == LOAD)
        self._under_way += 1
        places: list[tuple[tuple[int, ...], bytes | None]] = [(tuple(range(len(indexes))), None)]
        if whole.is_load and indexes and not asked & _SPARE:
            places = divide(indexes, self._homes, len(self.workers), self._queue.loading.each_s)
        form = COSTS
        if whole.is_load:
            is_batch = self._collates and len(places) == 1 and places[0][1] is None
            form = BATCH if is_batch else SAMPLES
        for some, home in places:
            self._add_part(whole, form, some).home = home
        self._queue.add(whole.parts)
        self._assign()

    def receive(self, seconds: float = 0.0, also: int | None = None) -> tuple[int, Any] | None:  # noqa: ARG002
        """Return the number of a task and its result, None if none is there."""
        return self._results.popleft() if self._results else None

    def who_has(self, number: int) -> str:
        """Return who works on a task, as text."""
        task = self._tasks.get(number)
        holders = (
            [] if task is None else [n for p in task.parts if p.answer is None for n in p.holders]
        )
        if holders:
            return "worker " + ", ".join(
                sorted({each.decode(errors="replace") for each in holders})
            )
        return "a worker" if self.workers else "a worker: none has come"

    def free(self, batch: Any) -> None:
        """Free what is kept of a microbatch; does nothing the second time."""
        if not isinstance(batch, Ticket) or batch.is_free:
            return
        batch.is_free = True
        task = self._tasks.pop(batch.number, None)
        if task is not None:
            self._drop(task)

    def forget(self) -> None:
        """Forget all tasks: the run is over."""
        for task in list(self._tasks.values()):
            self._drop(task)
        self._tasks.clear()
        self._results.clear()
        self._deaths.clear()
        self._under_way = 0
        self._homes.clear()

    # --- what comes

    def join(self, name: bytes, now: float) -> None:
        """Take in a worker whose source is open; one of the same name is a new process."""
        if name in self.workers:
            self.leave(name, now)
        self._now = now
        self.workers[name] = PoolWorker(name, now)
        self._assign()

    def leave(self, name: bytes, now: float) -> None:
        """A worker is gone: others do what it had, and make again what it kept."""
        self._now = now
        worker = self.workers.pop(name, None)
        if worker is None:
            return
        held = [part for part in worker.parts.values() if part.number in self._parts]
        first = worker.parts.get(worker.busy_with[0]) or next(iter(held), None)
        again = []
        for part in held:
            part.holders.pop(name, None)
            again.append(part)
        for part in worker.pieces.values():
            self._held -= part.piece.nbytes if part.piece else 0
            self._lose_piece(part)
            again.append(part)
        for index in [index for index, home in self._homes.items() if home == name]:
            del self._homes[index]
        self._queue.add_first(part for part in again if part is not first)
        if first is not None and first.answer is None and first in again and not first.of.is_over:
            self._suspect(first, was_begun=worker.busy_with[0] == first.number)
        self._assign()

    def handle(self, name: bytes, message: FromWorker, now: float) -> None:
        """Apply what a worker says."""
        self._now = now
        worker = self.workers.get(name)
        if worker is None:
            return
        worker.heard_at = now
        if isinstance(message, PoolBeat):
            self._beat(worker, message)
            return
        part = self._parts.get(message.number)
        was_given = worker.parts.pop(message.number, None) is not None
        if part is None or part.answer is not None or not was_given:
            serial = message.serial if isinstance(message, PartMade) else 0
            if serial and serial not in worker.pieces:
                worker.free.append(serial)
        else:
            self._answered(worker, part, message)
        self._assign()

    def tick(self, now: float) -> None:
        """Do what the time asks for: give up workers, give copies of what is late."""
        self._now = now
        for worker in list(self.workers.values()):
            hangs = worker.busy_with[1] >= 0 and now > worker.busy_since + self._lease_s
            if hangs or now > worker.heard_at + DEAD_S:
                self.leave(worker.name, now)
        for worker, part in self._queue.give_copies(self.workers, now):
            self._give(worker, part)

    def take_messages(self) -> list[tuple[bytes, ToWorker]]:
        """Return what is to be sent, and to whom."""
        for worker in self.workers.values():
            if worker.free:
                self._out.append((worker.name, FreeParts(tuple(worker.free))))
                worker.free = []
        messages, self._out = self._out, []
        return messages

    def take_renewed(self) -> list[Ticket]:
        """Return tickets of which a lost piece was made again."""
        renewed, self._renewed = self._renewed, []
        return renewed

    def lose_pieces(self, ticket: Ticket, numbers: Iterable[int]) -> None:
        """Have pieces of a ticket made again: what their workers have is of no use."""
        task = self._tasks.get(ticket.number)
        if task is None or ticket.is_free:
            return
        parts = [part for part in task.parts if part.piece is not None]
        for part in [parts[number] for number in numbers if number < len(parts)]:
            if part.piece is not None and part.piece.worker is not None:
                self._free_piece(part)
                self._lose_piece(part)
                self._queue.add_first([part])
        self._assign()

    def may_go(self, name: bytes) -> bool:
        """Return whether a worker that leaves has nothing that is needed."""
        worker = self.workers.get(name)
        return worker is None or not (worker.parts or worker.pieces)

    # --- parts

    def _add_part(self, task: PoolTask, form: str, places: tuple[int, ...]) -> Part:
        self._last += 1
        part = Part(self._last, task, form, places)
        self._parts[part.number] = part
        task.parts.append(part)
        task.open += 1
        return part

    def _answered(self, worker: PoolWorker, part: Part, message: Any) -> None:
        """Take what was made of a part."""
        task = part.of
        if part.alone:
            self._deaths.pop(part.indexes[0], None)
        part.holders.pop(worker.name, None)
        self._take_back(part)
        if isinstance(message, PartBroken):
            self._finish(task, PartFailed(message.error))
            self._drop(task)
            return
        queue = self._queue
        paces = (queue.loading, worker.loading)
        if not task.is_load:
            paces = (queue.measuring, worker.measuring)
        for pace in paces:
            pace.add(message.took_us / 1e6, len(part.places))
        part.answer = message
        if isinstance(message, PartMade) and message.serial:
            part.piece = part.piece or KeptPiece(part.places)
            piece = part.piece
            piece.worker, piece.serial = worker.name, message.serial
            piece.nbytes, piece.frames = message.nbytes, message.frames
            worker.pieces[message.serial] = part
            self._held += message.nbytes
        if isinstance(message, PartMeasured):
            indexes = part.indexes
            self._homes.update({indexes[place]: worker.name for place in message.kept})
        elif self._homes:
            for index in part.indexes:
                self._homes.pop(index, None)
        task.open -= 1
        if not task.open:
            self._complete(task)

    def _complete(self, task: PoolTask) -> None:
        """All parts are made: tell the run, or those that have the ticket."""
        if task.is_told:
            if task.ticket is not None and not task.ticket.is_free:
                task.ticket.version += 1
                self._renewed.append(task.ticket)
        elif not task.is_load:
            self._finish(task, joined_measured(task))
            self._drop(task)
        else:
            self._finish(task, joined_made(task))
            if task.ticket is None:
                self._drop(task)

    def _finish(self, task: PoolTask, result: Any) -> None:
        if not task.is_told:
            task.is_told = True
            self._under_way -= 1
            self._results.append((task.number, result))

    def _drop(self, task: PoolTask) -> None:
        """Want nothing more of a task."""
        if not task.is_told and not task.is_over:
            self._under_way -= 1
        task.is_over = True
        self._tasks.pop(task.number, None)
        for part in task.parts:
            self._parts.pop(part.number, None)
            self._take_back(part)
            self._free_piece(part)

    def _take_back(self, part: Part) -> None:
        """Have nobody do a part."""
        for name in part.holders:
            if (worker := self.workers.get(name)) is not None:
                worker.parts.pop(part.number, None)
                self._out.append((name, DropParts((part.number,))))
        part.holders.clear()

    def _free_piece(self, part: Part) -> None:
        piece = part.piece
        if piece is None or piece.worker is None:
            return
        worker = self.workers.get(piece.worker)
        if worker is not None and worker.pieces.pop(piece.serial, None) is not None:
            worker.free.append(piece.serial)
            self._held -= piece.nbytes
        piece.worker = None

    def _lose_piece(self, part: Part) -> None:
        """A piece is lost: its part is to be made again."""
        if part.piece is not None:
            part.piece.worker, part.piece.nbytes = None, 0
        if part.answer is not None and not part.of.is_over:
            part.answer = None
            part.of.open += 1

    # --- giving

    def _assign(self) -> None:
        """Give queued parts to the workers that have room."""
        for worker, part in self._queue.give(self.workers):
            self._give(worker, part)

    def _give(self, worker: PoolWorker, part: Part) -> None:
        part.holders[worker.name] = self._now
        worker.parts[part.number] = part
        freed, worker.free = tuple(worker.free), []
        self._out.append((worker.name, DoPart(part.number, part.form, part.packed, part.alone, freed)))

    # --- deaths and lost messages

    def _suspect(self, part: Part, was_begun: bool) -> None:
        """A worker was lost with this part in work: find out whether a sample kills.

        was_begun: it has said that it began; else it may have died of something else, which counts
        half.
        """
        self._take_back(part)
        indexes = part.indexes
        if not part.alone and len(indexes) != 1:
            for index in indexes:
                self._deaths[index] = max(2, self._deaths[index])
            self._split(part)
            return
        part.alone = True
        self._deaths[indexes[0]] += 1 + was_begun
        if self._deaths[indexes[0]] >= 2 * MOST_DEATHS:
            del self._deaths[indexes[0]]
            self._finish(part.of, Killed(indexes[0], MOST_DEATHS))
            self._drop(part.of)
        else:
            self._queue.add_first([part])

    def _split(self, part: Part) -> None:
        """Have the samples of a part made one by one, each alone."""
        task = part.of
        if task.is_told or not part.places:  # its ticket is out there, with this piece
            self._queue.add_first([part])
            return
        self._parts.pop(part.number)
        at = task.parts.index(part)
        task.parts.remove(part)
        task.open -= 1
        form = SAMPLES if task.is_load else part.form
        singles = [self._add_part(task, form, (place,)) for place in part.places]
        for single in singles:
            single.alone = True
        del task.parts[len(task.parts) - len(singles) :]
        task.parts[at:at] = singles
        if task.is_load:
            for other in task.parts:  # a batch is of one piece
                other.form = SAMPLES
        self._queue.add_first(singles)

    def _beat(self, worker: PoolWorker, beat: PoolBeat) -> None:
        """Compare what a worker says of itself with what is known here."""
        worker.is_leaving = beat.leaving
        busy = (beat.number, beat.index)
        if busy != worker.busy_with:
            worker.busy_with, worker.busy_since = busy, self._now
        # What is not in work though it was given, or is kept though nobody has heard of it: in some
        # beats in a row a message was lost.
        lacks = bool(worker.parts) and beat.number not in worker.parts
        keeps = beat.kept > len(worker.pieces) + len(worker.free) + len(worker.parts)
        for which, is_unlike in enumerate((lacks, keeps)):
            worker.unlike[which] = worker.unlike[which] + 1 if is_unlike else 0
        if worker.unlike[0] >= UNLIKE:
            worker.unlike[0] = 0
            for part in worker.parts.values():
                self._out.append((worker.name, DoPart(part.number, part.form, part.packed, part.alone)))
        if worker.unlike[1] >= UNLIKE:
            worker.unlike[1] = 0
            self._out.append((worker.name, KeepOnly(tuple(worker.pieces), tuple(worker.parts))))
        self._assign()
