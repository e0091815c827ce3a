"""What a rank records while a trace is taken: how batches come, are waited for and handed out."""

import time

from ...balancer.parties.messages import GiveBatch
from ...balancer.protocol.trace_messages import MICROSECONDS, StartTrace, TraceSpans
from ...balancer.server.spans import SpanRecorder


class RankTrace(SpanRecorder):
    """The spans of one trainer process."""

    def __init__(self) -> None:
        super().__init__()
        # When batches have arrived, by place, and when the last was ready to be unpacked.
        self._arrived: dict[tuple[int, int, int], float] = {}
        self._ready = 0.0

    def begin(self, asked: StartTrace) -> TraceSpans:
        """Begin to record, unless that has begun; return the answer."""
        if self.until is None:
            self._arrived.clear()
            self._ready = 0.0
        return self.start(asked, time.monotonic(), round(MICROSECONDS * time.time()))

    def arrived(self, batch: GiveBatch) -> None:
        """Note that a microbatch has come; its payloads may have to be pulled."""
        self._arrived[_place(batch)] = time.monotonic()

    def ready(self, batch: GiveBatch, asked: float) -> None:
        """Record how a microbatch has come, and the wait for it since it was asked for."""
        self._ready, place = time.monotonic(), _place(batch)
        if (since := self._arrived.pop(place, None)) is not None:
            self.add("carry, until asked for", since, self._ready, place, [batch.first])
        self.add("wait", asked, self._ready, place)

    def released(self, batch: GiveBatch) -> None:
        """Record that a microbatch was unpacked and collated."""
        if self._ready:
            self.add("deliver", self._ready, time.monotonic(), _place(batch))


def _place(batch: GiveBatch) -> tuple[int, int, int]:
    return batch.facts.rank, batch.facts.step, batch.facts.microbatch
