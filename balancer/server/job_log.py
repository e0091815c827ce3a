"""Logs what happens in a job, a line an event, from the walk of its coordinator's table.

Each line has fields beside its text, as `extra` of the standard logging: event, job, and worker,
rank or key where it is about one. `counterpoise --log-format json` writes them.
"""

import logging
from collections.abc import Mapping
from typing import Any

from ..coordinator.machine import Coordinator
from ..coordinator.run.epoch import EpochRun
from ..protocol.messages import RunFailed
from ..protocol.transitions import ABSENT, W_READY, Event

logger = logging.getLogger(__name__)
INFO = logging.INFO

# How a peer left, and why, by the event: who was refused is logged with the reason elsewhere.
_GONE = {
    "WorkerBye": ("leave", ""),
    "RankBye": ("leave", ""),
    Event.ENDED: ("leave", " (its trainer has ended it)"),
    Event.REPLACED: ("leave", " (a newer process has its name)"),
    Event.HEARTBEAT_TIMEOUT: ("lost", " (it sends no heartbeats)"),
    Event.UNREACHABLE: ("lost", " (its connection has ended)"),
}
# Characters of a name, and of a reason.
MAX_NAME, MAX_REASON = 200, 600


class JobLog:
    """The log of one job; looks at its coordinator after each event."""

    def __init__(self, job: str) -> None:
        self.job = job
        self._names: dict[bytes, tuple[str, str]] = {}
        self._run: EpochRun | None = None
        self._failure: RunFailed | None = None
        self._holes = 0
        self._log("job", "job %s has come", job)

    def look(self, state: Coordinator) -> None:
        """Log what is new since the last time."""
        while state.changes:
            self._log_change(state, *state.changes.popleft())
        run = state.run
        if run is not self._run:
            if run is not None and (self._run is None or self._run.number != run.number):
                self._log("epoch", "job %s: epoch %d begins", self.job, run.begin.epoch)
            elif run is not None:
                step = run.begin.start.step
                self._log("restart", "job %s: its run starts again at step %d", self.job, step)
            self._run, self._holes = run, 0
        if run is not None and run.holes > self._holes:
            self._holes, hole = run.holes, run.last_holes[-1]
            text = "job %s: sample %.200r of %.200s cannot be used: %.600s"
            where = hole.source or "the data"
            self._log(
                "sample", text, self.job, hole.key, where, hole.reason, about={"key": hole.key}
            )
        if state.failure is not self._failure:
            self._failure = state.failure
            if state.failure is not None:
                reason = state.failure.reason[:MAX_REASON]
                self._log("failure", "job %s fails: %s", self.job, reason, level=logging.ERROR)

    def forgotten(self) -> None:
        """Log that the job is over."""
        self._log("job", "job %s is over: its ranks have gone", self.job)

    def _log_change(
        self, state: Coordinator, peer: bytes, before: str, event: str, after: str
    ) -> None:
        if before == ABSENT or peer not in self._names:
            self._names[peer] = _name_of(state, peer)
        role, name = self._names[peer]
        if before == ABSENT:
            self._log("join", "job %s: %s %s has come", self.job, role, name, about={role: name})
        elif after == W_READY:
            self._log(
                "ready", "job %s: worker %s has the data open", self.job, name, about={role: name}
            )
        elif after == ABSENT:
            del self._names[peer]
            if event in _GONE:
                what, why = _GONE[event]
                text, level = "job %s: %s %s has gone%s", INFO
                if what == "lost":
                    text, level = "job %s: %s %s is lost%s", logging.WARNING
                self._log(what, text, self.job, role, name, why, level=level, about={role: name})

    def _log(
        self, event: str, text: str, *args: Any, level: int = INFO, about: Mapping[str, str] = {}
    ) -> None:
        logger.log(level, text, *args, extra={"event": event, "job": self.job, **about})


def _name_of(state: Coordinator, peer: bytes) -> tuple[str, str]:
    """Return what a peer is, and its name for people."""
    if (worker := state.workers.get(peer)) is not None:
        return "worker", worker.hello.name[:MAX_NAME]
    if (rank := state.ranks.get(peer)) is not None:
        ranks = ", ".join(map(str, rank.hello.ranks[:8]))
        return "rank", f"{ranks} ({rank.hello.name or 'without a name'})"[:MAX_NAME]
    return "peer", peer.decode("ascii", "backslashreplace")[:MAX_NAME]
