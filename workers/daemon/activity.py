"""Measures a worker's activity for its heartbeats: time at work, work in progress, and its clock.

One thread works, another sends heartbeats. They share one tuple, which is replaced as a whole.
"""

import threading

from ...balancer.protocol.clock_offset import ClockFilter
from ...balancer.protocol.messages import HeartbeatAck, WorkerHeartbeat
from ...balancer.protocol.parts import IDLE, WorkInProgress


class WorkerActivity:
    """Seconds spent probing and decoding, and the clock; `forgotten`: the balancer lost the worker.

    >>> activity = WorkerActivity()
    >>> activity.begin("decode", (1, 7), now=1.0)
    >>> activity.end(now=3.0)
    >>> activity.begin("probe", (2, 9), now=5.0)
    >>> sent = activity.heartbeat("w", 0, now=5.5, wall=0.0)
    >>> sent.probe_ms, sent.lease, sent.ordinal, activity.work_ms(now=6.0)
    (500, 2, 9, (1000, 2000))
    """

    def __init__(self) -> None:
        self.forgotten = threading.Event()
        self.clock = ClockFilter()
        # Seconds of finished probing and decoding; kind, start and sample of what is in progress.
        self._work: tuple[float, float, str, float, WorkInProgress] = (0.0, 0.0, "", 0.0, IDLE)

    def begin(self, kind: str, hand: WorkInProgress, now: float) -> None:
        """Note that work of a kind ("probe" or "decode") on a lease's sample begins.

        What began before is over: between samples of a lease there is nothing but work.
        """
        probe_s, decode_s, last, since, _ = self._work
        if last == "decode":
            decode_s += now - since
        elif last:
            probe_s += now - since
        self._work = probe_s, decode_s, kind, now, hand

    def end(self, now: float) -> None:
        """Note that the work that began last is over."""
        self._work = (*self._seconds(now), "", 0.0, IDLE)

    def work_ms(self, now: float) -> tuple[int, int]:
        """Return the milliseconds spent so far, probing and decoding."""
        probe_s, decode_s = self._seconds(now)
        return int(1000 * probe_s), int(1000 * decode_s)

    def heartbeat(self, name: str, incarnation: int, now: float, wall: float) -> WorkerHeartbeat:
        """Return the next heartbeat; `wall` is this machine's wall clock."""
        offset = self.clock.best()
        number = self.clock.request(now, wall)
        measured = (*self.work_ms(now), offset.ahead_us, offset.error_us, *self._work[-1])
        return WorkerHeartbeat(name, incarnation, number, *measured)

    def acknowledged(self, answer: HeartbeatAck, now: float) -> None:
        """Update the clock from the balancer's answer to a heartbeat."""
        self.clock.record_response(answer.number, answer.clock_us, now)

    def _seconds(self, now: float) -> tuple[float, float]:
        probe_s, decode_s, kind, since, _ = self._work
        spent = now - since if kind else 0.0
        return probe_s + spent * (kind == "probe"), decode_s + spent * (kind == "decode")
