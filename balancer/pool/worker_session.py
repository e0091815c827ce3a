"""A worker's side of a pool: which part to make next, and what to say of those that are made.

Sans-IO: messages in, and out. A part that comes again is made once: its answer is said again as
long as something of it is kept, or it is one of the last ANSWERS.
"""

from typing import Any

from .messages import KEPT, DoPart, FreeParts, FromWorker, PartMade, PoolBeat, ToWorker

ANSWERS = 64


class PoolSession:
    """The state of a worker in one job's pool.

    freed: serials of what is to be freed, which the worker empties.
    """

    def __init__(self) -> None:
        self._queue: dict[int, DoPart] = {}
        self._in_work: DoPart | None = None
        self._index = -1
        self._is_dropped = False
        self._kept_answers: dict[int, PartMade] = {}
        self._serials: dict[int, int] = {}
        self._answers: dict[int, Any] = {}
        self._out: list[FromWorker] = []
        self._turn = 0
        self.freed: list[int] = []

    def take(self, message: ToWorker) -> None:
        """Take a message of the balancer."""
        for serial in message.serials:
            if (number := self._serials.pop(serial, 0)) != 0:
                del self._kept_answers[number]
                self.freed.append(serial)
        in_work = 0 if self._in_work is None else self._in_work.number
        if isinstance(message, FreeParts):
            self._is_dropped |= in_work in message.numbers
            for number in message.numbers:
                self._queue.pop(number, None)
            return
        answer = self._kept_answers.get(message.number) or self._answers.get(message.number)
        if answer is not None:
            self._out.append(answer)
        elif message.number != in_work:
            self._queue[message.number] = message

    @property
    def has_work(self) -> bool:
        """Return whether there is a part to make."""
        return bool(self._queue)

    def upcoming(self) -> list[tuple[int, ...]]:
        """Return the tasks that wait, in the order in which they are made."""
        return [part.task for part in self._queue.values()]

    def next_part(self) -> DoPart | None:
        """Return the part to make now, None where there is none or one is in work."""
        if self._in_work is not None or not self._queue:
            return None
        number = next(iter(self._queue))
        self._in_work, self._is_dropped = self._queue.pop(number), False
        self._index = -1
        return self._in_work

    def begin_sample(self, index: int) -> None:
        """Note which sample is in work, by its index in the source; -1 for none or several."""
        self._index = index

    def finish(self, answer: Any) -> None:
        """Take what became of the part in work: PartMade, PartMeasured, PartBroken."""
        self._in_work, self._index = None, -1
        serial = answer.serial if isinstance(answer, PartMade) else 0
        if self._is_dropped:
            self.freed += [serial] if serial else []
            return
        if serial:
            self._kept_answers[answer.number] = answer
            self._serials[serial] = answer.number
        else:
            self._answers[answer.number] = answer
            if len(self._answers) > ANSWERS:
                del self._answers[next(iter(self._answers))]
        self._out.append(answer)

    def beat(self, leaving: bool = False) -> PoolBeat:
        """Return the heartbeat: what is in work, and some of what is kept."""
        serials = [(number, answer.serial) for number, answer in self._kept_answers.items()]
        self._turn = self._turn % len(serials) if serials else 0
        page = tuple(serials[self._turn : self._turn + KEPT])
        self._turn += KEPT
        number = 0 if self._in_work is None else self._in_work.number
        return PoolBeat(number, self._index, leaving, page)

    def take_messages(self) -> list[FromWorker]:
        """Return what is to be said."""
        out, self._out = self._out, []
        return out

    def reset(self) -> None:
        """Begin anew at a balancer that does not know this worker: nothing is kept any more."""
        self.freed += self._serials
        self._queue.clear()
        self._kept_answers.clear()
        self._serials.clear()
        self._answers.clear()
        self._out.clear()
        self._is_dropped = self._in_work is not None
