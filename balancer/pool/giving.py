"""Which worker gets which part: parts that wait, and how long workers take for what they have."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from .parts import Part
from .workers import AHEAD_S, Pace, PoolWorker

# A worker is late with a part when it takes so many times what another would.
LATE = 2


class PartQueue:
    """Parts that wait for a worker, in the order of need.

    loading, measuring: how long a sample takes, over all workers.
    """

    def __init__(self) -> None:
        self._waiting: deque[Part] = deque()
        self.loading, self.measuring = Pace(), Pace()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, parts: Iterable[Part]) -> None:
        """Add parts behind all others."""
        for part in parts:
            part.is_queued = True
            self._waiting.append(part)

    def add_first(self, parts: Iterable[Part]) -> None:
        """Add parts before all others, in their order, unless somebody does them."""
        again = [part for part in parts if part.is_wanted and not (part.holders or part.is_queued)]
        self._waiting.extendleft(reversed(again))
        for part in again:
            part.is_queued = True

    def give(self, workers: Mapping[bytes, PoolWorker]) -> Iterator[tuple[PoolWorker, Part]]:
        """Yield the parts that are given now: to who would end each first, if that one has room.

        The caller takes note of each before it asks for the next.
        """
        if not self._waiting:
            return
        ahead = {name: self._ahead_s(worker) for name, worker in workers.items()}
        while self._waiting:
            part = self._waiting[0]
            worker = self._first_to_end(part, workers, ahead) if part.is_wanted else None
            if part.is_wanted and worker is None:
                return
            self._waiting.popleft()
            part.is_queued = False
            if worker is not None:
                ahead[worker.name] += self._seconds(worker, part)
                yield worker, part

    def give_copies(
        self, workers: Mapping[bytes, PoolWorker], now: float
    ) -> Iterator[tuple[PoolWorker, Part]]:
        """Yield what others are late with, for idle workers: the first result counts."""
        idle = [worker for worker in workers.values() if not (worker.parts or worker.is_leaving)]
        for worker in [] if self._waiting else idle:
            for other in workers.values():
                part = next((p for p in other.parts.values() if len(p.holders) == 1), None)
                if part is None or part.alone:
                    continue
                here_s = self._seconds(worker, part)
                if here_s and now - part.holders[other.name] > LATE * max(here_s, AHEAD_S / 4):
                    yield worker, part
                    break

    def _first_to_end(
        self, part: Part, workers: Mapping[bytes, PoolWorker], ahead: Mapping[bytes, float]
    ) -> PoolWorker | None:
        """Return who would end a part first, None where that one has no room yet."""
        home = None if part.home is None else workers.get(part.home)
        if home is not None and not home.is_leaving:
            return home if home.has_room(ahead[home.name]) else None
        able = [w for w in workers.values() if not (w.is_leaving or (part.alone and w.parts))]
        if not able:
            return None
        first = min(able, key=lambda w: (ahead[w.name] + self._seconds(w, part), len(w.parts)))
        return first if first.has_room(ahead[first.name]) else None

    def _ahead_s(self, worker: PoolWorker) -> float:
        return sum(self._seconds(worker, part) for part in worker.parts.values())

    def _seconds(self, worker: PoolWorker, part: Part) -> float:
        """Return about how long a worker takes for a part; 0 if nothing is known."""
        own, all_of = worker.loading, self.loading
        if not part.of.is_load:
            own, all_of = worker.measuring, self.measuring
        return (own.each_s or all_of.each_s) * len(part.places)
