"""The spans of a job's balancer in a trace: parts at workers, microbatches on their way to ranks.

Pure: messages and the time in seconds in, spans out, by `add`.
"""

from collections import deque
from collections.abc import Callable

from ..parties.messages import GiveBatch, WantBatches
from ..pool.messages import COSTS, DoPart, PartBroken, PartMade, PartMeasured
from ..run.tasks import TASK_HEAD

# What is under way and remembered: more is no trace's. Of a rank's credit the last moments are.
MAX_OPEN, MOST_MOMENTS = 100_000, 64
ANSWERS = (PartMade, PartMeasured, PartBroken, WantBatches)
Place = tuple[int, ...]
Taker = tuple[bytes, int, int]


class TracedMessages:
    """What of a trace is under way. Samples are named by where they are in the source."""

    def __init__(self, add: Callable[..., None]) -> None:
        """`add` is that of a SpanRecorder."""
        self._add = add
        self._parts: dict[tuple[bytes, int], tuple[float, DoPart]] = {}
        # Of a trainer, a run and a rank: up to which number it asked for microbatches, and when.
        self._wants: dict[Taker, deque[tuple[int, float]]] = {}
        self._given: dict[Taker, dict[int, tuple[float, Place]]] = {}

    def sent(self, peer: bytes, message: object, now: float) -> None:
        """Take note of a message that is sent."""
        if isinstance(message, DoPart) and len(self._parts) < MAX_OPEN:
            self._parts.setdefault((peer, message.number), (now, message))
        elif isinstance(message, GiveBatch):
            facts = message.facts
            taker = peer, message.run, facts.rank
            given, wants = self._given.setdefault(taker, {}), self._wants.get(taker, ())
            if message.index not in given and len(given) < MAX_OPEN:
                since = next((at for upto, at in wants if upto > message.index), now)
                place = facts.rank, facts.step, facts.microbatch
                given[message.index] = now, place
                self._add("request", since, now, place, [message.first] * (message.first >= 0))

    def received(self, peer: bytes, message: object, now: float) -> None:
        """Take note of one of ANSWERS."""
        if isinstance(message, WantBatches):
            self._take_wants(peer, message, now)
        elif isinstance(message, PartMade | PartMeasured | PartBroken):
            since, part = self._parts.pop((peer, message.number), (now, None))
            if part is not None:
                kind = "part to measure" if part.form == COSTS else "part to load"
                self._add(kind, since, now, (), part.task[TASK_HEAD:])

    def _take_wants(self, peer: bytes, message: WantBatches, now: float) -> None:
        for rank, upto, have in message.wants if len(self._wants) < MAX_OPEN else ():
            taker = peer, message.run, rank
            wants = self._wants.setdefault(taker, deque(maxlen=MOST_MOMENTS))
            if not wants or upto > wants[-1][0]:
                wants.append((upto, now))
            given = self._given.get(taker, {})
            for index in [each for each in given if each < have]:
                since, place = given.pop(index)
                self._add("to the rank", since, now, place)
