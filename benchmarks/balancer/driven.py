"""A balancer's jobs in this process, without sockets; time is simulated.

Counted is what the jobs take in (`handle`) and do (`tick`) once for all that has come, planning
too: a window is smaller than what is planned in a thread beside.
"""

import time
from collections.abc import Sequence
from typing import Any

from counterpoise.balancer.job.effects import Send
from counterpoise.balancer.job.jobs import PlayedJobs

from .stand_ins import StandIns

TURN_S = 0.001


class Driven(StandIns):
    """Jobs that are driven; messages: how many went to and fro."""

    def __init__(self, ranks: int, steps: int, samples: int) -> None:
        super().__init__(ranks, steps, samples)
        self.jobs = PlayedJobs(1, lambda _: (b"", b""))
        self.messages, self._now, self._cpu_s = 0, 0.0, 0.0
        self._sent: list[Send] = []

    def cpu_s(self) -> float:
        """Return the CPU seconds that the jobs have used."""
        return self._cpu_s

    def post(self, peer: bytes, messages: Sequence[Any]) -> None:
        """Hand messages to the jobs."""
        self.messages += len(messages)
        began = time.process_time()
        for message in messages:
            self._sent += self.jobs.handle(peer, message, (), self._now)
        self._cpu_s += time.process_time() - began

    def turn(self) -> None:
        """Have the jobs do what is due, and the peers what they are told."""
        began = time.process_time()
        sends = self.jobs.tick(self._now)
        self._cpu_s += time.process_time() - began
        self._now += TURN_S
        sends, self._sent = self._sent + sends, []
        self.messages += len(sends)
        for send in sends:
            self.take(send.peer, send.message)
        self.answer()
