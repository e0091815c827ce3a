"""Logs what happens in a job, a line an event.

Each line has fields beside its text, as `extra` of the standard logging: event, job, and worker,
rank or key where it is about one. `counterpoise --log-format json` writes them.
"""

import logging
from typing import Any

logger = logging.getLogger(__name__)


class JobEvents:
    """The log of one job."""

    def __init__(self, job: str) -> None:
        self.job = job

    def log(
        self, event: str, text: str, *args: Any, level: int = logging.INFO, **about: Any
    ) -> None:
        """Log an event: the text follows the job's name; `about` are further fields."""
        extra = {"event": event, "job": self.job, **about}
        logger.log(level, f"job %s{text}", self.job, *args, extra=extra)

    def come(self, role: str, name: str) -> None:
        """Log that a worker or a rank has come."""
        about: dict[str, Any] = {role: name}
        self.log("join", ": %s %.200s has come", role, name, **about)

    def gone(self, role: str, name: str, event: str, why: str) -> None:
        """Log that a worker or a rank has left (event "leave"), or is "lost"."""
        text, level = ": %s %.200s has gone%s", logging.INFO
        if event == "lost":
            text, level = ": %s %.200s is lost%s", logging.WARNING
        about: dict[str, Any] = {role: name}
        self.log(event, text, role, name, why, level=level, **about)
