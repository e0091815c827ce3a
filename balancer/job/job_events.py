"""Logs what happens in a job, a line an event.

Each line has fields beside its text, as `extra` of the standard logging: event, job, and worker,
rank or key where it is about one. `counterpoise --log-format json` writes them.
"""

import logging
from collections.abc import Mapping
from typing import Any

from ..protocol.parts import Hole

logger = logging.getLogger(__name__)
INFO = logging.INFO
# Characters of a name, and of a reason.
MAX_NAME, MAX_REASON = 200, 600


class JobEvents:
    """The log of one job."""

    def __init__(self, job: str) -> None:
        self.job = job

    def come(self, role: str, name: str) -> None:
        """Log that a worker or a rank has come."""
        self._log("join", "%s %s has come", role, name[:MAX_NAME], about={role: name})

    def ready(self, name: str) -> None:
        """Log that a worker has opened the source."""
        text = "worker %s has the data open"
        self._log("ready", text, name[:MAX_NAME], about={"worker": name})

    def gone(self, role: str, name: str, event: str, why: str) -> None:
        """Log that a worker or a rank has left ("leave"), or is "lost"."""
        text, level = "%s %s has gone%s", INFO
        if event == "lost":
            text, level = "%s %s is lost%s", logging.WARNING
        self._log(event, text, role, name[:MAX_NAME], why, level=level, about={role: name})

    def begin(self, epoch: int) -> None:
        """Log that an epoch begins."""
        self._log("epoch", "epoch %d begins", epoch)

    def begin_again(self, step: int) -> None:
        """Log that a run begins again at a step."""
        self._log("restart", "its run starts again at step %d", step)

    def fail(self, reason: str) -> None:
        """Log that the run fails."""
        self._log_of("failure", "job %s fails: %s", reason[:MAX_REASON], level=logging.ERROR)

    def leave_out(self, hole: Hole) -> None:
        """Log that a sample cannot be used."""
        text = "sample %.200r of %.200s cannot be used: %.600s"
        where = hole.source or "the data"
        self._log("sample", text, hole.key, where, hole.reason, about={"key": hole.key})

    def start(self) -> None:
        """Log that the job has come."""
        self._log_of("job", "job %s has come")

    def end(self) -> None:
        """Log that the job is over."""
        self._log_of("job", "job %s is over: its ranks have gone")

    def _log(self, event: str, text: str, *args: Any, **options: Any) -> None:
        self._log_of(event, f"job %s: {text}", *args, **options)

    def _log_of(
        self, event: str, text: str, *args: Any, level: int = INFO, about: Mapping[str, str] = {}
    ) -> None:
        extra = {"event": event, "job": self.job, **about}
        logger.log(level, text, self.job, *args, extra=extra)
