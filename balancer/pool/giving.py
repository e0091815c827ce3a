"""Gives parts to workers: to the one that would end a part first, in the order of the queue."""

from heapq import heappop, heappush
from math import ceil
from typing import Any

from .messages import COSTS, DoPart, FreeParts, ToWorker
from .workers import AHEAD_S, LEAST_AHEAD, MOST_AHEAD, Giving, PoolPart, PoolWorker

# What a sample takes, as long as nothing is known of it.
GUESS_S = 1e-3


class PartGiver:
    """The parts that wait, and who gets them; it measures what a sample takes.

    out: messages to be sent. load_s: what it takes to load a sample, 0 if that is not known.
    parts_per_task: of a microbatch, 0 before there was one. now: the time of what happens.
    """

    def __init__(self, workers: dict[bytes, PoolWorker], first: int) -> None:
        """`workers` is the pool's, which it changes; numbers of parts are above `first`."""
        self._workers = workers
        self.now = 0.0
        self.out: list[tuple[bytes, ToWorker]] = []
        self.load_s = self._cost_s = self._part_s = self.parts_per_task = 0.0
        self._last = first
        # Parts that wait, in the order of their tasks, and those that a worker does by themselves.
        self._queue: list[tuple[int, int, PoolPart]] = []
        self._trials: list[tuple[int, int, PoolPart]] = []
        self._ready: list[tuple[float, int, PoolWorker]] = []
        self._reserved: PoolWorker | None = None  # for a part that is tried by itself

    @property
    def most(self) -> int:
        """How many tasks fill all workers, with one to follow."""
        ahead = ceil(AHEAD_S / max(self._part_s, GUESS_S)) if self._part_s else LEAST_AHEAD
        parts = len(self._workers) * max(LEAST_AHEAD, min(MOST_AHEAD, ahead))
        return ceil(parts / max(1.0, self.parts_per_task or len(self._workers))) + 1

    def enqueue(self, part: PoolPart) -> None:
        """Let a part wait for a worker."""
        self._last += 1
        queue = self._trials if part.is_alone else self._queue
        heappush(queue, (part.task.number, self._last, part))

    def ask(self, worker: PoolWorker) -> None:
        """Put a worker in the queue of those that have room, by when it would be done."""
        if worker.name in self._workers and worker.has_room and worker is not self._reserved:
            self._last += 1
            worker.key = self._last
            unit = max(self.load_s, GUESS_S)
            heappush(self._ready, ((worker.work_s + unit) * worker.pace, self._last, worker))

    def _next_worker(self, work_s: float) -> PoolWorker | None:
        """Return who would end a part first; None where it is better to wait for one that is busy.

        One that stays idle though it was slow is tried again after as long as it would take.
        """
        while self._ready:
            _, key, worker = self._ready[0]
            if key != worker.key or not worker.has_room or worker is self._reserved:
                heappop(self._ready)
                continue
            end_s = (worker.work_s + work_s) * worker.pace
            if not worker.givings:
                end_s -= self.now - worker.idle_since
            if len(self._workers) > 1 and end_s > max(3 * work_s, AHEAD_S + work_s) + GUESS_S:
                return None
            heappop(self._ready)
            return worker
        return None

    def give(self) -> None:
        """Give parts to workers that have room."""
        self._give_trials()
        while self._queue:
            part = self._queue[0][-1]
            if not part.waits:
                heappop(self._queue)
                continue
            keeper = part.keeper
            if keeper is not None and keeper.name in self._workers and not keeper.is_leaving:
                worker: PoolWorker | None = keeper
            else:
                part.keeper = None
                worker = self._next_worker(self._work_s(part))
            if worker is None:
                return
            heappop(self._queue)
            self.hand(worker, part)

    def _give_trials(self) -> None:
        """Give each part that is tried by itself to a worker that has nothing else."""
        reserved = None
        while self._trials and reserved is None:
            part = self._trials[0][-1]
            if part.waits:
                # The last to be heard first: one that has died is idle, too, and another death
                # would count.
                able = [worker for worker in self._workers.values() if not worker.is_leaving]
                last = self._reserved
                worker = min(
                    able,
                    key=lambda w: (len(w.givings), bool(w.givings) and w is not last, -w.heard),
                    default=None,
                )
                if worker is None:
                    break
                if worker.givings:  # it is given nothing until it has nothing else
                    reserved = worker
                    break
                self.hand(worker, part)
            heappop(self._trials)
        if reserved is not self._reserved:
            before, self._reserved = self._reserved, reserved
            if before is not None:
                self.ask(before)

    def _work_s(self, part: PoolPart) -> float:
        """Return how long a part takes a worker of the usual speed."""
        if part.keeper is not None:
            return GUESS_S
        sample_s = self._cost_s if part.form == COSTS else self.load_s
        return (sample_s or GUESS_S) * len(part.places)

    def hand(self, worker: PoolWorker, part: PoolPart) -> None:
        """Give a part to a worker."""
        self._last += 1
        giving = Giving(part, self.now, self._work_s(part))
        worker.givings[self._last] = giving
        worker.work_s += giving.work_s
        self._part_s += (0.1 if self._part_s else 1.0) * (giving.work_s - self._part_s)
        part.numbers[worker] = self._last
        self.send_part(worker, self._last, part)
        self.ask(worker)

    def send_part(self, worker: PoolWorker, number: int, part: PoolPart) -> None:
        """Tell a worker what to do, and what it need not keep."""
        freed, worker.freeing = tuple(worker.freeing), []
        self.out.append((worker.name, DoPart(number, part.form, part.words(), freed)))

    def drop(self, part: PoolPart, is_beaten: bool = False) -> None:
        """Tell workers that a part is not wanted any more."""
        for worker, number in [*part.numbers.items()]:
            giving = worker.givings[number]
            if is_beaten and giving is next(iter(worker.givings.values())):
                # So much slower than usual it is at least.
                worker.note_pace((self.now - giving.since) / giving.work_s)
            worker.take_giving(number, self.now)
            worker.dropping.append(number)
            self.ask(worker)

    def say_freed(self) -> None:
        """Say what is not wanted any more, if no part has said so meanwhile."""
        for worker in self._workers.values():
            if worker.dropping or worker.freeing:
                message = FreeParts(tuple(worker.freeing), tuple(worker.dropping))
                self.out.append((worker.name, message))
                worker.dropping, worker.freeing = [], []

    def copy_late(self) -> None:
        """Give idle workers what others are late with, by twice what it would take here."""
        idle = [w for w in self._workers.values() if not (w.givings or w.is_leaving)]
        if self._queue or not idle:
            return
        idle.sort(key=lambda worker: -worker.pace)
        late = [
            (giving.since, number, giving.part)
            for worker in self._workers.values()
            for number, giving in worker.givings.items()
            if len(giving.part.numbers) == 1
        ]
        for since, _, part in sorted(late, key=lambda row: row[:2]):
            if not idle or part.is_alone:  # of one that is tried alone a second worker may die
                continue
            if self.now - since > 2 * self._work_s(part) * idle[-1].pace:
                self.hand(idle.pop(), part)

    def note_time(self, worker: PoolWorker, giving: Giving, message: Any) -> None:
        """Note how long a sample takes, and how much longer this worker."""
        part = giving.part
        if part.keeper is not None:
            return
        # No worker has needed longer for a part than it has had it.
        took_s = min(getattr(message, "took_us", 0) / 1e6, self.now - giving.since)
        sample_s = took_s / len(part.places)
        usual = self._cost_s if part.form == COSTS else self.load_s
        if usual:
            worker.note_pace(sample_s / usual)
        mean = usual + (0.1 if usual else 1.0) * (sample_s - usual)
        if part.form == COSTS:
            self._cost_s = mean
        else:
            self.load_s = mean
