"""The tasks of a planned run whose workers are on the network: events in, messages out.

Theory of operation. A task is cut into parts (parts.py). A part waits in the order in which the run
has asked, and is given to the worker that would end it first, each time under a new number. What a
number's answer announces is kept at that worker until its ticket is freed; an answer to a number
that is over is freed at once, so that any message may be repeated, late, or lost: what a worker
does not do though it has time is told it again, and so is what it keeps and need not.

Where a worker is lost, others make again what it had and what it kept. Of what it worked on each
sample is suspected, and is tried by itself at a worker that has nothing else: one that MOST_DEATHS
workers have died of is told to the run, which leaves it out.
"""

import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

from ..run.tasks import TASK_HEAD, Failed, Killed
from .giving import PartGiver
from .messages import KEPT, FromWorker, PartBroken, PartMade, PartMeasured, PoolBeat, ToWorker
from .parts import cut, cut_singly, failed_places, is_whole, join, make_piece
from .tickets import Ticket
from .workers import PoolPart, PoolTask, PoolWorker

DEAD_S, MOST_DEATHS = 6.0, 3
# Bits of a part's number below the generation of its balancer.
GENERATION = 32


class NetworkPool:
    """The pool of a job's workers; `Tasks` of a run. Names of workers are never used again.

    generation: greater than that of a balancer before, whose parts workers may still answer.
    lease_s: seconds that a worker may take for one sample; dead_s: that it may be silent.
    collates: whether workers make batches. skips: whether samples that cannot be used are left out.
    renewed: tickets of which all pieces are there again. spoiled: tickets that cannot be made
    again, and why. lost: workers that were given up, and why. The server empties these. deaths: of
    a sample, by its index.
    """

    def __init__(
        self, lease_s: float, collates: bool, skips: bool, generation: int = 0,
        dead_s: float = DEAD_S,
    ) -> None:  # fmt: skip
        self._lease_s, self._collates, self._skips = lease_s, collates, skips
        self._dead_s = dead_s
        self.workers: dict[bytes, PoolWorker] = {}
        self.renewed: list[Ticket] = []
        self.spoiled: list[tuple[Ticket, Killed | Failed]] = []
        self.lost: list[tuple[bytes, str]] = []
        self._giver = PartGiver(self.workers, generation << GENERATION)
        self._tasks: dict[int, PoolTask] = {}
        self._results: deque[tuple[int, Any]] = deque()
        self._keepers: dict[tuple[int, int], PoolWorker] = {}
        self.deaths: dict[int, float] = {}
        self._full: set[bytes] = set()  # workers that keep all that they may
        self.kept_bytes = 0  # by workers

    # --- what the run asks

    @property
    def most(self) -> int:
        """How many tasks may be under way: as many as fill all workers, and one to follow."""
        return self._giver.most

    @property
    def most_held(self) -> int:
        """Bytes bound what is made ahead: of all workers, and of one that may keep no more."""
        return 0 if self._full else sys.maxsize

    def held_bytes(self, waiting: int, mean_bytes: int) -> int:  # noqa: ARG002
        """Return the bytes that workers keep; until the mean is known, one a worker is enough."""
        has_room = mean_bytes or len(self._tasks) < len(self.workers)
        return self.kept_bytes if has_room else sys.maxsize

    def submit(self, number: int, task: Sequence[int]) -> None:
        """Take a task; its parts are given to workers in the order of numbers, which grow."""
        new = self._tasks[number] = PoolTask(number, tuple(task), task[TASK_HEAD:])
        new.parts = cut(new, len(self.workers), self._giver.load_s, self._collates, self._keepers)
        if new.is_load:
            mean = self._giver.parts_per_task or len(new.parts)
            self._giver.parts_per_task = mean + 0.1 * (len(new.parts) - mean)
        for part in [*new.parts]:
            self._make(part)
        if not new.parts:
            self._complete(new)
        self._giver.give()

    def receive(self, seconds: float = 0.0, also: int | None = None) -> tuple[int, Any] | None:  # noqa: ARG002
        """Return the number of a task and its result, None if there is none: nothing waits here."""
        return self._results.popleft() if self._results else None

    def describe_worker(self, number: int) -> str:
        """Return who works on a task, and on which sample, as text."""
        task = self._tasks.get(number)
        for part in task.parts if task else ():
            for worker in part.numbers:
                sample = f" (sample {worker.at[1]})" if worker.at[1] >= 0 else ""
                # What comes after the last dot is known to the worker alone: it is not told.
                name = worker.name.decode(errors="replace").rpartition("|")[2]
                return f"worker {name.rpartition('.')[0] or name}{sample}"
        return "a worker" if self.workers else "a worker: none has come"

    def free(self, ticket: Any) -> None:
        """Free what workers keep of a microbatch; does nothing the second time, or for None."""
        if isinstance(ticket, Ticket) and not ticket.is_free:
            ticket.is_free = True
            self._end(self._tasks[ticket.number])
            self._giver.give()

    def remake(self, ticket: Ticket, numbers: Sequence[int]) -> None:
        """Have pieces of a ticket made again, which their workers do not have."""
        pieces = [ticket.pieces[number] for number in numbers]
        for part in self._tasks[ticket.number].parts if not ticket.is_free else ():
            if part.piece in pieces and part.piece.worker is not None:
                self._free_piece(part)
                self._make(part)
        self._giver.give()

    def forget(self) -> None:
        """The run is over: nothing that was asked for is wanted, tickets are freed."""
        for task in [*self._tasks.values()]:
            if task.ticket is not None:
                task.ticket.is_free = True
            self._end(task)
        self._results.clear()
        self._keepers.clear()
        self.renewed.clear()
        self.spoiled.clear()

    # --- workers

    def add_worker(self, name: bytes, now: float, most_bytes: int = sys.maxsize) -> None:
        """A worker has come, which has nothing of this job, and may keep so many bytes."""
        self._giver.now = now
        self.workers[name] = PoolWorker(name, now, most_bytes, idle_since=now)
        self._giver.ask(self.workers[name])
        self._giver.give()

    def take(self, name: bytes, message: FromWorker, now: float) -> None:
        """Take a message of a worker; that of one who was given up is ignored."""
        worker, self._giver.now = self.workers.get(name), now
        if worker is None:
            return
        worker.heard = now
        if isinstance(message, PoolBeat):
            self._take_beat(worker, message)
        else:
            self._take_done(worker, message)
        self._giver.give()

    def leaving(self) -> list[bytes]:
        """Return the workers that are to end, and may: nothing would be lost with them."""
        workers = self.workers.values()
        return [w.name for w in workers if w.is_leaving and not (w.givings or w.kept_parts)]

    def look(self, now: float) -> None:
        """Give up workers that are silent or hang, and have made twice what one is late with.

        To be called some ten times a second.
        """
        self._giver.now = now
        for worker in [*self.workers.values()]:
            why = "it sends no heartbeats" if now > worker.heard + self._dead_s else ""
            if self.hangs(worker):
                why = f"it has worked on one sample for more than {self._lease_s:.0f} s"
            if why:
                self.lose(worker.name, now)
                self.lost.append((worker.name, why))
        self._giver.give()
        self._giver.copy_late()
        self._giver.say_freed()

    def take_messages(self) -> list[tuple[bytes, ToWorker]]:
        """Return the messages that are to be sent, each with its worker."""
        out, self._giver.out = self._giver.out, []
        return out

    # --- what workers say

    def _take_beat(self, worker: PoolWorker, beat: PoolBeat) -> None:
        if (beat.number, beat.index) != worker.at:
            worker.at, worker.at_since = (beat.number, beat.index), self._giver.now
        worker.is_leaving |= beat.leaving
        if beat.most_bytes:
            worker.most_bytes = beat.most_bytes
            self._count_kept(worker, 0)
        if beat.number == 0 or beat.number in worker.givings:
            for number, giving in worker.givings.items():
                if number == beat.number:
                    break
                giving.beats += 1
                if giving.beats > 1:  # the part or its answer was lost
                    giving.beats = 0
                    self._giver.send_part(worker, number, giving.part)
        for number, serial in beat.kept[:KEPT]:
            if number not in worker.givings and number not in worker.kept_parts:
                worker.freeing.append(serial)

    def _take_done(self, worker: PoolWorker, message: Any) -> None:
        giving = worker.take_giving(message.number, self._giver.now)
        if giving is None:
            if isinstance(message, PartMade) and message.number not in worker.kept_parts:
                worker.freeing += [message.serial] if message.serial else []
            return
        part = giving.part
        self._giver.note_time(worker, giving, message)
        self._giver.ask(worker)
        self._giver.drop(part, is_beaten=True)
        for index in part.indexes if self.deaths else ():
            self.deaths.pop(index, None)
        if isinstance(message, PartBroken):
            self._fail(part.task, Failed(RuntimeError(message.error)))
        else:
            self._take_answer(part, worker, message)

    def _take_answer(self, part: PoolPart, worker: PoolWorker, answer: Any) -> None:
        """Take what was made of a part; the last answer of a task makes its result."""
        task = part.task
        if isinstance(answer, PartMeasured):
            for place in answer.kept:
                self._keepers[task.words[1], part.indexes[place]] = worker
        if isinstance(answer, PartMade):
            failed = failed_places(part, answer.failed)
            if part.failed is not None and failed != part.failed:
                worker.freeing += [answer.serial] if answer.serial else []
                reason = answer.failed[0].reason if answer.failed else "it could be used now"
                why = f"a sample that is made again gave another result: {reason}"
                self._fail(task, Failed(RuntimeError(why)))
                return
            part.failed = failed
            if answer.serial:
                # In place of what was lost.
                worker.kept_parts[answer.number], part.kept_number = part, answer.number
                part.piece = make_piece(part, worker.name, answer)
                self._count_kept(worker, answer.nbytes)
        part.answer = answer
        part.task.awaited -= 1
        place = part.places[0] + 1 if part.is_alone else len(task.indexes)
        if task.is_spare and not answer.serial and place < len(task.indexes):
            task.parts = [PoolPart(task, part.form, (place,), is_alone=True)]  # the next may do
            self._make(task.parts[0])
            return
        if not task.awaited:
            self._complete(task)

    def _complete(self, task: PoolTask) -> None:
        """Tell the result of a task, or that its ticket is there again."""
        if task.ticket is not None:
            task.ticket.pieces = [part.piece for part in task.parts if part.piece is not None]
            task.ticket.is_batch = is_whole(task)
            task.ticket.version += 1
            self.renewed.append(task.ticket)
            return
        result = join(task, self._skips)
        if task.ticket is None:
            self._end(task)
        self._results.append((task.number, result))

    def _fail(self, task: PoolTask, why: Killed | Failed) -> None:
        """Tell why there is no result of a task, or why its ticket cannot be made again."""
        if task.is_over:
            return
        ticket = task.ticket
        self._end(task)
        if ticket is None:
            self._results.append((task.number, why))
        else:
            ticket.is_free = True
            self.spoiled.append((ticket, why))

    def _end(self, task: PoolTask) -> None:
        """Forget a task: its parts are dropped, what is kept of them is freed."""
        task.is_over = True
        self._tasks.pop(task.number, None)
        for part in task.parts:
            self._discard(part)

    def _discard(self, part: PoolPart) -> None:
        part.is_over = True
        self._giver.drop(part)
        self._free_piece(part)
        if part.answer is None:
            part.task.awaited -= 1

    def _free_piece(self, part: PoolPart) -> None:
        """Free what a worker keeps of a part."""
        piece = part.piece
        if piece is None or piece.worker is None:
            return
        worker = self.workers[piece.worker]
        del worker.kept_parts[part.kept_number]
        self._count_kept(worker, -piece.nbytes)
        piece.worker = None
        worker.freeing.append(piece.serial)

    def _count_kept(self, worker: PoolWorker, nbytes: int) -> None:
        self.kept_bytes += nbytes
        worker.kept_bytes += nbytes
        is_full = worker.kept_bytes >= worker.most_bytes
        (self._full.add if is_full else self._full.discard)(worker.name)

    def _make(self, part: PoolPart) -> None:
        """Have a part made, or made again."""
        part.answer = None
        part.task.awaited += 1
        self._giver.enqueue(part)

    # --- deaths

    def hangs(self, worker: PoolWorker, share: float = 1.0) -> bool:
        """Return whether the sample that its beats name is in work for a share of lease_s."""
        number, index = worker.at
        giving = worker.givings.get(number)
        count = len(giving.part.places) if giving and index < 0 else 1
        lease_s = share * self._lease_s * max(1, count)
        return bool(number) and self._giver.now > worker.at_since + lease_s

    def lose(self, name: bytes, now: float, is_ended: bool = False) -> None:
        """A worker is gone: others do what it had, and make again what it kept.

        is_ended: by the process that has started it, and of no sample.
        """
        self._giver.now, worker = now, self.workers.pop(name, None)
        if worker is None:
            return
        worker.key = -1
        # While no time is known nothing is known to be quick.
        suspects = [] if is_ended else worker.suspects()[: None if self._giver.load_s else 1]
        weight = worker.weigh_death(suspects, now, self._dead_s)
        named = self.hangs(worker) and worker.at[1] >= 0
        parts = [giving.part for giving in worker.givings.values()]
        for number in [*worker.givings]:
            worker.take_giving(number, now)
        self._full.discard(name)
        self.kept_bytes -= worker.kept_bytes
        self._keepers = {at: w for at, w in self._keepers.items() if w is not worker}
        for part in worker.kept_parts.values():
            if part.piece is not None:
                part.piece.worker = None
            self._make(part)
        for part in parts:
            if part not in suspects and not part.numbers:
                self._giver.enqueue(part)
        for suspect in suspects:
            if not suspect.is_over:
                self._blame(suspect, worker.at[1] if named else -1, weight)
        self._giver.give()

    def _blame(self, part: PoolPart, index: int, weight: float) -> None:
        """Suspect samples of a part of which a worker has died: the one at an index, or all."""
        task = part.task
        is_sure = part.is_alone or index in part.indexes
        for suspect in [index] if index in part.indexes else part.indexes:
            # What several are suspected of counts once: it was one of them.
            deaths = self.deaths.get(suspect, 0.0)
            self.deaths[suspect] = deaths + weight if is_sure else max(weight, deaths)
            if self.deaths[suspect] >= MOST_DEATHS:
                self._fail(task, Killed(suspect, MOST_DEATHS))
                return
        if part.is_alone:
            self._giver.enqueue(part)
            return
        singles = cut_singly(part)
        self._discard(part)
        task.parts = [sibling for sibling in task.parts if sibling is not part] + singles
        for single in singles:
            self._make(single)
