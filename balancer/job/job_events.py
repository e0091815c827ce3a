"""Logs and counts what happens in a job.

A line of the log has fields beside its text, as `extra` of the standard logging: event, job, and
worker, rank or key where it is about one. `counterpoise --log-format json` writes them. What is
counted `counterpoise doctor` shows; no decision depends on it.
"""

import logging
import math
from collections import deque
from typing import Any

from ..protocol.parts import Hole
from ..run.tasks import MicrobatchFacts

logger = logging.getLogger(__name__)
# The last holes, and workers that were turned away or lost, are remembered.
REMEMBERED = 4


class JobEvents:
    """The log of one job, and its counts: see StatusReport. holes: of the run that is played."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.lost = self.turned_away = self.holes = 0
        self.lost_at = -math.inf
        self.last_lost = deque[str](maxlen=REMEMBERED)
        self.last_refused = deque[str](maxlen=REMEMBERED)
        self.last_holes = deque[Hole](maxlen=REMEMBERED)

    def log(
        self, event: str, text: str, *args: Any, level: int = logging.INFO, **about: Any
    ) -> None:
        """Log an event: the text follows the job's name; `about` are further fields."""
        extra = {"event": event, "job": self.job, **about}
        logger.log(level, f"job %s{text}", self.job, *args, extra=extra)

    def log_peer(self, event: str, role: str, name: str, why: str = "") -> None:
        """Log that a worker or a rank has come (event "join"), has left ("leave"), or is "lost"."""
        does = {"join": "has come", "leave": "has gone", "lost": "is lost"}[event]
        level = logging.WARNING if event == "lost" else logging.INFO
        self.log(event, f": %s %.200s {does}%s", role, name, why, level=level, **{role: name})

    def begin_run(self) -> None:
        """Count what is left out anew."""
        self.holes = 0
        self.last_holes.clear()

    def note_given(self, facts: MicrobatchFacts) -> None:
        """Take note of a microbatch that is given to a rank."""
        self.holes += len(facts.holes)
        self.last_holes.extend(facts.holes)
        for hole in facts.holes:
            text = ": sample %.200r of %.200s cannot be used: %.600s"
            source = hole.source or "the data"
            self.log("sample", text, hole.key, source, hole.reason, key=hole.key)
