"""Samples that planning wants measured: tasks for workers in portions, between microbatches."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .agreement import LOOKS, pack_looks
from .planning import Planning
from .tasks import LOOK, Failed, FailedSample, Killed, Measure, Tasks

# A portion takes a worker about this long, and seldom less than this part of it.
PORTION_S, LEAST_PART, FIRST_PORTION, MOST_PORTION = 0.05, 4, 4, 1024


class Measuring:
    """The measuring of a run; what comes of it is planning's.

    numbers: of tasks. give_up: says of a sample that has killed workers why it cannot be used.
    under_way: what workers measure, by number. differs: whether measuring a sample for another
    epoch gave another cost. measured: how many.
    """

    def __init__(
        self,
        tasks: Tasks,
        planning: Planning,
        epoch: int,
        numbers: Iterator[int],
        give_up: Callable[[Killed], FailedSample],
    ) -> None:
        self._tasks, self._planning, self._numbers = tasks, planning, numbers
        self._epoch, self._give_up = epoch, give_up
        self._waiting: deque[tuple[int, int]] = deque()
        self.under_way: dict[int, list[tuple[int, int]]] = {}
        self._portion = FIRST_PORTION
        self.differs = False
        self.measured = 0

    def want(self, samples: Sequence[tuple[int, int]]) -> None:
        """Have samples measured: their ordinals, and where in the source they are."""
        self._waiting.extend(samples)

    def look(self, indexes: Sequence[int]) -> None:
        """Have samples looked at, which all ranks compare."""
        number = next(self._numbers)
        self.under_way[number] = []
        self._tasks.submit(number, [LOOK, self._epoch, 0, *indexes])

    def send(self, idle: bool) -> None:
        """Give portions to workers; a process that does its tasks itself does them when idle."""
        most = self._tasks.most
        while self._waiting and (idle or most > 1) and len(self.under_way) < most:
            some = [self._waiting.popleft() for _ in range(self._next_portion(most))]
            number = next(self._numbers)
            self.under_way[number] = some
            measure = Measure(self._epoch, [index for _, index in some], self.measured == 0)
            self._tasks.submit(number, measure.packed())

    def _next_portion(self, most: int) -> int:
        """Return how many samples are measured at a time: more than a worker's share if quick."""
        waiting = len(self._waiting)
        share = max(-(-waiting // max(1, most)), self._portion // LEAST_PART)
        return max(1, min(self._portion, share, waiting))

    def take(self, number: int, result: Any) -> bool:
        """Take a task's result; False if it is of none of these. Raises what measuring raised."""
        some = self.under_way.pop(number, None)
        if some is None:
            return False
        if not some:  # where a sample kills, nothing is compared
            self._planning.say(LOOKS, pack_looks(result))
        elif isinstance(result, Killed):
            given_up = [ordinal for ordinal, index in some if index == result.index]
            self._planning.measured(given_up, [self._give_up(result)] * len(given_up))
            self._waiting.extendleft([each for each in some if each[1] != result.index])
        elif isinstance(result, Failed):
            result.reraise()
        else:
            self._planning.measured([ordinal for ordinal, _ in some], result.costs)
            self.differs |= result.differs
            self.measured += len(some)
            each_s = result.seconds / max(1, len(some))
            self._portion = max(1, min(MOST_PORTION, int(PORTION_S / max(each_s, 1e-6))))
        return True
