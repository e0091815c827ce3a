"""What a worker's beat tells besides that it is alive: time at work, and its clock.

One thread works, another beats. What they share is one tuple that is replaced as a whole.
"""

import threading

from ...balancer.protocol.clock_offset import ClockFilter
from ...balancer.protocol.messages import HeartbeatAck, WorkerHeartbeat
from ...balancer.protocol.parts import IDLE, WorkInProgress


class WorkerActivity:
    """Seconds spent probing and decoding, and the clock; `forgotten`: nobody knows the worker.

    >>> pulse = WorkerActivity()
    >>> pulse.begin("decode", (1, 7), now=1.0)
    >>> pulse.end(now=3.0)
    >>> pulse.begin("probe", (2, 9), now=5.0)
    >>> beat = pulse.beat("w", 0, now=5.5, wall=0.0)
    >>> beat.probe_ms, beat.lease, beat.ordinal, pulse.work_ms(now=6.0)
    (500, 2, 9, (1000, 2000))
    """

    def __init__(self) -> None:
        self.forgotten = threading.Event()
        self.clock = ClockFilter()
        # Seconds of probing and decoding that are over, and what began when, if it is not over.
        self._work: tuple[float, float, str, float, WorkInProgress] = (0.0, 0.0, "", 0.0, IDLE)

    def begin(self, kind: str, hand: WorkInProgress, now: float) -> None:
        """Work of a kind ("probe" or "decode") on a lease's sample begins."""
        probe_s, decode_s, *_ = self._work
        self._work = probe_s, decode_s, kind, now, hand

    def end(self, now: float) -> None:
        """The work that began last is over."""
        self._work = (*self._seconds(now), "", 0.0, IDLE)

    def work_ms(self, now: float) -> tuple[int, int]:
        """Return the milliseconds spent so far, probing and decoding."""
        probe_s, decode_s = self._seconds(now)
        return int(1000 * probe_s), int(1000 * decode_s)

    def beat(self, name: str, incarnation: int, now: float, wall: float) -> WorkerHeartbeat:
        """Return the next beat; `wall` is what this machine's wall clock shows."""
        offset = self.clock.best()
        number = self.clock.request(now, wall)
        told = (*self.work_ms(now), offset.ahead_us, offset.error_us, *self._work[-1])
        return WorkerHeartbeat(name, incarnation, number, *told)

    def heard(self, answer: HeartbeatAck, now: float) -> None:
        """Take in what the balancer says to a beat."""
        self.clock.record_response(answer.number, answer.clock_us, now)

    def _seconds(self, now: float) -> tuple[float, float]:
        probe_s, decode_s, kind, since, _ = self._work
        spent = now - since if kind else 0.0
        return probe_s + spent * (kind == "probe"), decode_s + spent * (kind == "decode")
