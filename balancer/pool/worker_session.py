"""A worker's side of a pool, without a socket: parts to do in order, and what is kept of them.

Every message may come twice, late, or not at all: a part that is asked for again is answered again.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any

from .messages import (
    DoPart,
    DropParts,
    FreeParts,
    FromWorker,
    KeepOnly,
    PartMade,
    PoolBeat,
    ToWorker,
)  # fmt: skip

# Answers that are remembered of parts of which nothing is kept.
REMEMBERED = 256


class WorkerSession:
    """Parts that a worker has to do, and frames that it keeps, by serial.

    working: the number and sample of the part in work, (0, -1) for none.
    """

    def __init__(self) -> None:
        self.working = (0, -1)
        self.is_leaving = False
        self.kept: dict[int, Sequence[Any]] = {}
        self._waiting: OrderedDict[int, DoPart] = OrderedDict()
        self._answers: OrderedDict[int, FromWorker] = OrderedDict()
        self._numbers: dict[int, int] = {}  # of the part that is kept, by serial
        self._out: deque[FromWorker] = deque()
        self._last = 0

    def receive(self, message: ToWorker) -> None:
        """Apply a message of the balancer."""
        match message:
            case DoPart():
                self._free(message.freed)
                if (answer := self._answers.get(message.number)) is not None:
                    self._out.append(answer)
                elif message.number != self.working[0]:
                    self._waiting.setdefault(message.number, message)
            case DropParts():
                for number in message.numbers:
                    self._waiting.pop(number, None)
            case FreeParts():
                self._free(message.serials)
            case KeepOnly():
                serials, numbers = {*message.serials}, {*message.numbers}
                self._free([
                    serial for serial, number in self._numbers.items()
                    if serial not in serials and number not in numbers
                ])  # fmt: skip

    def next_part(self) -> DoPart | None:
        """Return the next part to do, which is in work from now on; None where there is none."""
        if not self._waiting:
            return None
        number, part = self._waiting.popitem(last=False)
        self.working = (number, -1)
        return part

    def note_sample(self, index: int) -> None:
        """Take note of the sample that is in work."""
        self.working = (self.working[0], index)

    def keep(self, frames: Sequence[Any]) -> int:
        """Keep what was made of the part in work; return its serial."""
        self._last += 1
        self.kept[self._last] = frames
        self._numbers[self._last] = self.working[0]
        return self._last

    def done(self, answer: FromWorker) -> None:
        """Answer the part in work."""
        self._answers[self.working[0]] = answer
        while len(self._answers) > REMEMBERED + len(self.kept):
            self._forget_answer()
        self.working = (0, -1)
        self._out.append(answer)

    def beat(self) -> PoolBeat:
        """Return what is said from time to time."""
        return PoolBeat(*self.working, len(self.kept), self.is_leaving)

    def take_messages(self) -> list[FromWorker]:
        """Return what is to be sent."""
        messages = [*self._out]
        self._out.clear()
        return messages

    def clear(self) -> None:
        """Forget all: the balancer does not know this worker."""
        self._waiting.clear()
        self._answers.clear()
        self.kept.clear()
        self._numbers.clear()
        self._out.clear()

    def _free(self, serials: Sequence[int]) -> None:
        for serial in serials:
            self.kept.pop(serial, None)
            if (number := self._numbers.pop(serial, None)) is not None:
                self._answers.pop(number, None)

    def _forget_answer(self) -> None:
        """Forget the oldest answer of which nothing is kept."""
        for number, answer in self._answers.items():
            if not (isinstance(answer, PartMade) and answer.serial in self.kept):
                del self._answers[number]
                return
