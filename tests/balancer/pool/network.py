"""A simulated network of a pool: messages are lost, doubled and late, workers die and hang."""

from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Any

from counterpoise.balancer.pool import messages as m
from counterpoise.balancer.pool.pool import NetworkPool
from counterpoise.balancer.pool.worker_session import PoolSession
from counterpoise.balancer.run.tasks import MEASURE, TASK_HEAD, Killed, Load, LoadedBatch, Measure

# A ticket is held for so long before it is looked at, and freed.
HELD_S = 0.2


@dataclass
class Faults:
    """What goes wrong: shares of messages, and numbers of accidents."""

    lost: float = 0.0
    doubled: float = 0.0
    delay_s: float = 0.002
    kills: int = 0
    hangs: int = 0
    leaves: int = 0
    poison: frozenset[int] = frozenset()
    broken: frozenset[int] = frozenset()


@dataclass
class FakeWorker:
    """A worker: its session, its store, what it works on, and until when."""

    name: bytes
    slowness: float
    session: PoolSession = field(default_factory=PoolSession)
    store: dict[int, tuple[int, ...]] = field(default_factory=dict)
    part: Any = None
    at: int = 0
    began: float = 0.0
    is_hung: bool = False
    is_dead: bool = False
    is_leaving: bool = False
    serials: int = 0
    parts: int = 0
    told_at: float = 0.0


class Network:
    """Drives a pool and its workers by events of a clock; a run of tasks is played by `play`."""

    def __init__(
        self, seed: int, workers: int, faults: Faults, sample_s: float = 0.01,
        lease_s: float = 5.0, collates: bool = True, slow: float = 1.0, tell_s: float = 0.0,
    ) -> None:  # fmt: skip
        """`tell_s`: what workers have made within so long they tell together."""
        self.tell_s = tell_s
        self.random = Random(seed)
        self.faults, self.sample_s = faults, sample_s
        self.pool = NetworkPool(lease_s, collates, skips=True)
        self.now, self.count, self.names = 0.0, 0, 0
        self.events: list[tuple[float, int, str, Any]] = []
        self.workers: dict[bytes, FakeWorker] = {}
        self.deaths: dict[int, int] = {}
        self.problems: list[str] = []
        for number in range(workers):
            self.come(slow if number == 0 else 1.0)
        self.at(0.0, "look", None)
        for kind, times in (
            ("kill", faults.kills),
            ("hang", faults.hangs),
            ("leave", faults.leaves),
        ):
            for _ in range(times):
                self.at(self.random.uniform(0.0, 2.0), kind, None)

    def at(self, when: float, kind: str, what: Any) -> None:
        self.count += 1
        heappush(self.events, (when, self.count, kind, what))

    def come(self, slowness: float = 1.0) -> None:
        self.names += 1
        worker = FakeWorker(b"w%d" % self.names, slowness)
        self.workers[worker.name] = worker
        self.pool.add_worker(worker.name, self.now)
        self.at(self.now + self.random.random(), "beat", worker)

    def post(self, kind: str, what: Any) -> None:
        for _ in range(1 + (self.random.random() < self.faults.doubled)):
            if self.random.random() >= self.faults.lost:
                self.at(self.now + self.random.random() * self.faults.delay_s, kind, what)

    # --- what happens

    def step(self) -> None:
        self.now, _, kind, what = heappop(self.events)
        getattr(self, f"on_{kind}")(what)
        for name, message in self.pool.take_messages():
            self.post("worker", (name, message))
        for name, _ in self.pool.lost:
            self.die(self.workers.get(name))
        self.pool.lost.clear()

    def on_look(self, _: Any) -> None:
        self.pool.look(self.now)
        self.at(self.now + 0.05, "look", None)

    def on_worker(self, what: Any) -> None:
        worker = self.workers.get(what[0])
        if worker is not None and not worker.is_hung:
            worker.session.take(what[1])
            self.go_on(worker)

    def on_pool(self, what: Any) -> None:
        name, message = what
        self.pool.take(name, message, self.now)

    def on_beat(self, worker: FakeWorker) -> None:
        if worker.is_dead:
            return
        if worker.name in self.pool.leaving() and not worker.part:
            self.die(worker)
            self.pool.lose(worker.name, self.now)
            return
        self.post("pool", (worker.name, worker.session.beat(worker.is_leaving)))
        self.at(self.now + 1.0, "beat", worker)

    def pick(self) -> FakeWorker | None:
        some = [w for w in self.workers.values() if len(w.part.task) > TASK_HEAD + 1] if all(
            w.part for w in self.workers.values()) else []  # fmt: skip
        return self.random.choice(some) if some else None

    def on_kill(self, _: Any) -> None:
        self.die(self.pick(), tell=self.random.random() < 0.5)

    def on_hang(self, _: Any) -> None:
        if (worker := self.pick()) is not None:
            worker.is_hung = True

    def on_leave(self, _: Any) -> None:
        if (worker := self.pick()) is not None:
            worker.is_leaving = True
            self.come()

    def die(self, worker: FakeWorker | None, tell: bool = False) -> None:
        if worker is None or worker.is_dead:
            return
        worker.is_dead = True
        del self.workers[worker.name]
        if not worker.is_leaving:
            self.come()
        if tell:
            self.pool.lose(worker.name, self.now)

    # --- what workers do

    def go_on(self, worker: FakeWorker) -> None:
        for serial in worker.session.freed:
            worker.store.pop(serial, None)
        worker.session.freed.clear()
        if worker.part is None and (part := worker.session.next_part()) is not None:
            worker.part, worker.at, worker.began = part, 0, self.now
            self.begin(worker)
        if worker.part is None or self.now >= worker.told_at + self.tell_s:
            worker.told_at = self.now
            for message in worker.session.take_messages():
                self.post("pool", (worker.name, message))

    def begin(self, worker: FakeWorker) -> None:
        indexes = worker.part.task[TASK_HEAD:]
        if worker.at >= len(indexes):
            self.at(self.now, "finish", worker)
            return
        index = indexes[worker.at]
        worker.session.begin_sample(index)
        if index in self.faults.poison:
            self.deaths[index] = self.deaths.get(index, 0) + 1
            self.die(worker, tell=True)
            return
        took = self.sample_s * worker.slowness * self.random.uniform(0.8, 1.2)
        self.at(self.now + took, "sample", worker)

    def on_sample(self, worker: FakeWorker) -> None:
        if not (worker.is_dead or worker.is_hung):
            worker.at += 1
            self.begin(worker)

    def on_finish(self, worker: FakeWorker) -> None:
        if worker.is_dead or worker.is_hung:
            return
        part, worker.part = worker.part, None
        worker.parts += 1
        worker.session.finish(self.make(worker, part, round((self.now - worker.began) * 1e6)))
        self.go_on(worker)

    def make(self, worker: FakeWorker, part: m.DoPart, took_us: int) -> Any:
        kind, indexes = part.task[0], part.task[TASK_HEAD:]
        failed = tuple(
            m.FailedPlace(place, str(index), "broken", False, "")
            for place, index in enumerate(indexes) if index in self.faults.broken
        )  # fmt: skip
        good = tuple(index for index in indexes if index not in self.faults.broken)
        if kind == MEASURE:
            costs = tuple((index,) if index in good else () for index in indexes)
            kept = tuple(n for n, index in enumerate(indexes) if index in good and index % 3)
            return m.PartMeasured(part.number, costs, failed, took_us, False, kept)
        serial = nbytes = 0
        if good or (part.form == m.BATCH and not indexes):
            worker.serials += 1
            serial, nbytes = worker.serials, 100 * len(good)
            worker.store[serial] = good
        names = tuple(map(str, good))
        return m.PartMade(part.number, serial, nbytes, (nbytes,), names, failed,
                          tuple((index,) for index in good), (len(good), len(good)), len(good),
                          nbytes, took_us)  # fmt: skip

    # --- a run

    def play(self, tasks: list[list[int]], most: int = 12, limit_s: float = 400.0) -> float:
        """Play tasks in order, each consumed in its turn; return the seconds, note the problems."""
        results: dict[int, Any] = {}
        came: dict[int, float] = {}
        sent, head, done_at = 0, 0, 0.0
        waiting = list(enumerate(tasks, 1))
        open_tasks: dict[int, list[int]] = {}
        while head < len(tasks) or not self.is_quiet():
            if self.now > limit_s:
                self.problems.append(f"hangs at task {head + 1}")
                return self.now
            while waiting and sent - head < min(most, self.pool.most + 4):
                number, task = waiting.pop(0)
                open_tasks[number] = task
                self.pool.submit(number, task)
                sent += 1
            self.step()
            while (found := self.pool.receive()) is not None:
                number, result = found
                if number in results and not isinstance(results[number], str):
                    self.problems.append(f"two results of task {number}")
                if isinstance(result, Killed):
                    self.take_killed(result)
                    again = [open_tasks[number][n] for n in range(TASK_HEAD)]
                    again += [i for i in open_tasks[number][TASK_HEAD:] if i != result.index]
                    renumbered = 1000 + number + 1000 * (number // 1000)
                    open_tasks[renumbered] = again
                    results[number] = "again"
                    self.pool.submit(renumbered, again)
                    continue
                results[number], came[number] = result, self.now
            while head < len(tasks) and (number := self.last_of(head + 1, open_tasks)) in results:
                result = results[number]
                if self.now < came.get(number, self.now) + HELD_S:
                    break
                if isinstance(result, LoadedBatch) and result.batch is not None:
                    if not result.batch.is_there:
                        break
                    self.check_ticket(number, open_tasks[number], result)
                    self.pool.free(result.batch)
                else:
                    self.check_other(number, open_tasks[number], result)
                head, done_at = head + 1, self.now
        if self.pool.kept_bytes:
            self.problems.append(f"{self.pool.kept_bytes} bytes held at the end")
        if self.pool.spoiled:
            self.problems.append(f"spoiled: {self.pool.spoiled}")
        return done_at

    def last_of(self, number: int, open_tasks: dict[int, list[int]]) -> int:
        while (again := 1000 + number + 1000 * (number // 1000)) in open_tasks:
            number = again
        return number

    def take_killed(self, killed: Killed) -> None:
        if killed.index not in self.faults.poison or killed.deaths != 3:
            self.problems.append(f"named {killed}")

    def is_quiet(self) -> bool:
        return all(not w.store and not w.part for w in self.workers.values() if not w.is_hung)

    def check_ticket(self, number: int, task: list[int], made: LoadedBatch) -> None:
        """Look at a microbatch where its workers keep it: each sample once, at its place."""
        indexes = task[TASK_HEAD:]
        if task[2] >> 3 & 1:
            indexes = next([i] for i in indexes if i not in self.faults.broken)
        good = [n for n, index in enumerate(indexes) if index not in self.faults.broken]
        seen: dict[int, int] = {}
        for piece in made.batch.pieces:
            worker = self.workers.get(piece.worker)
            if worker is None or worker.is_hung:
                return  # it is to be found out, and made again
            kept = worker.store.get(piece.serial)
            if kept is None:
                self.problems.append(f"task {number}: a piece was freed early")
                return
            kept = kept[: len(indexes)] if task[2] >> 3 & 1 else kept
            for place, index in zip(piece.places, kept, strict=False):
                if place in seen:
                    self.problems.append(f"task {number}: place {place} twice")
                seen[place] = index
        wanted = {n: indexes[n] for n in good}
        if seen != wanted or (made.batch.is_batch and len(made.batch.pieces) != 1):
            self.problems.append(f"task {number}: {seen} for {wanted}")
        if not task[2] >> 3 & 1 and made.names != tuple(str(indexes[n]) for n in good):
            self.problems.append(f"task {number}: names {made.names}")

    def check_other(self, number: int, task: list[int], result: Any) -> None:
        indexes = task[TASK_HEAD:]
        if task[0] == MEASURE:
            got = [c if type(c) is tuple and len(c) == 1 else None for c in result.costs]
            wanted = [(i,) if i not in self.faults.broken else None for i in indexes]
            if got != wanted:
                self.problems.append(f"task {number}: costs {got}")
        elif not isinstance(result, LoadedBatch) or any(
            i not in self.faults.broken for i in indexes
        ):
            self.problems.append(f"task {number}: {result}")


def tasks_of(random: Random, count: int, most: int = 24) -> list[list[int]]:
    """Return microbatches of different samples, some to measure, one with spares."""
    start, tasks = 0, []
    for number in range(count):
        size = random.randint(0 if number else 1, most)
        indexes = list(range(start, start + size))
        # What is measured is loaded next, partly where it was measured.
        is_measured = random.random() < 0.2
        start += 0 if is_measured else size
        tasks.append(
            Measure(0, indexes or [start]).packed() if is_measured
            else Load(0, indexes, True, True, size=True).packed()
        )  # fmt: skip
    tasks.append(Load(0, [start, start + 1, start + 2], spare=True).packed())
    return tasks
