"""Keeps a fleet: asks the balancer how the job goes, and starts or drains workers."""

import logging
import time
from collections.abc import Callable
from statistics import fmean
from typing import Protocol

from ...balancer.protocol.status_messages import GetStatus, StatusReport
from ...balancer.transport.asking import observe
from ...balancer.transport.finding import find_address
from ...balancer.transport.keys import PeerKeys
from .processes import STOP_S, BalancerProcess
from .scaling import FleetSize, Look, next_scale

logger = logging.getLogger(__name__)
LOOK_S, REAP_S, SILENT_LOOKS = 1.0, 0.1, 10
# A worker ends with one of these where another would end so, too: its command line is wrong, or its
# data are.
HOPELESS = (2, 4)
# Workers that have not come are named this long after they were asked for, and again.
SAY_S = 30.0
# A request that is younger than this may be answered in a moment.
PROMPT_MS = 200


class StartedWorker(Protocol):
    """A worker that was started somewhere: subprocess.Popen is one."""

    def poll(self) -> int | None:
        """Return its exit status once it has ended, below 0 where it was killed or lost."""

    def terminate(self) -> None:
        """Ask it to finish what it has, and to end."""

    def kill(self) -> None:
        """End it now."""


class FleetControl:
    """Workers as many as the job needs: at least bounds[0], at most bounds[1].

    trainers: how many trainer processes the balancer had when it was asked last.
    """

    def __init__(
        self,
        launch: Callable[[], StartedWorker],
        balancer: BalancerProcess | str,
        bounds: tuple[int, int],
        keys: PeerKeys | None,
        hint: str = "see what they logged",
    ) -> None:
        """launch: starts a worker. balancer: one that is ended with the workers, or an address.

        keys: a trainer's, where the balancer wants them. hint: where a worker waits that was
        started and has not come.
        """
        self.bounds = bounds
        self._launch, self._hint = launch, hint
        self._running: list[StartedWorker] = []
        # Those that were asked to end, and until when.
        self._leaving: list[tuple[StartedWorker, float]] = []
        self._balancer = balancer if isinstance(balancer, BalancerProcess) else None
        self._address = balancer if isinstance(balancer, str) else balancer.address
        self.trainers = 0
        self._keys = keys
        self.resize(bounds[0])
        self._say_at = time.monotonic() + SAY_S

    def resize(self, workers: int) -> None:
        """Have `workers` workers now, within the bounds; the job's needs decide from then on."""
        smallest, largest = self.bounds
        now = time.monotonic()
        self._scale = FleetSize(min(max(workers, smallest), largest), now, quiet_since=now)

    def run(self, stop: Callable[[], bool]) -> None:
        """Keep the fleet until `stop` returns true, then end it."""
        try:
            while not stop():
                if address := find_address(self._address):
                    self._follow(address, stop)
                else:
                    self.turn(None, time.monotonic())
                    time.sleep(LOOK_S)
        finally:
            self.stop()

    def _follow(self, address: str, stop: Callable[[], bool]) -> None:
        """Follow the balancer at an address as long as it answers: it may be elsewhere then."""
        silent = 0
        with observe(address, self._keys) as observer:
            while not stop() and silent < SILENT_LOOKS:
                next_look = time.monotonic() + LOOK_S
                report = observer.ask(GetStatus(), StatusReport, LOOK_S)
                silent = silent + 1 if isinstance(report, str) else 0
                self.turn(None if isinstance(report, str) else report, time.monotonic())
                time.sleep(max(0.0, next_look - time.monotonic()))

    def turn(self, report: StatusReport | None, now: float) -> None:
        """Start or drain workers after a report; None where the balancer gave none."""
        if self._balancer is not None:
            self._balancer.check()
        before = self._scale.workers
        if report is not None:
            self.trainers = report.trainers
            self._scale = next_scale(self._scale, read_look(report), self.bounds, now)
            self._say(report.workers, now)
        workers = self._scale.workers
        if workers != before:
            logger.info("%d workers in place of %d", workers, before)
        self._reap()
        for worker in list(self._running):
            if (status := worker.poll()) is not None:
                self._running.remove(worker)
                if status in HOPELESS:
                    raise RuntimeError(f"a worker ended with status {status}, see its log")
                logger.warning("a worker ended with status %d", status)
        while len(self._running) < workers:
            self._running.append(self._launch())
        self._drain(workers)

    def stop(self) -> None:
        """Drain all workers, wait for them, and end a balancer that is ours."""
        self._drain(0)
        while self._leaving:
            self._reap()
            time.sleep(REAP_S)
        if self._balancer is not None:
            self._balancer.stop()

    def _drain(self, workers: int) -> None:
        """Ask those that came last to end."""
        for worker in self._running[workers:]:
            worker.terminate()
            self._leaving.append((worker, time.monotonic() + STOP_S))
        del self._running[workers:]

    def _reap(self) -> None:
        """Forget those that have ended; kill those that take long."""
        for worker, until in self._leaving:
            if time.monotonic() > until:
                worker.kill()
        self._leaving = [leaving for leaving in self._leaving if leaving[0].poll() is None]

    def _say(self, here: int, now: float) -> None:
        """Log from time to time how many workers have not come; they come where trainers are."""
        missing = self._scale.workers - here
        if missing <= 0 or not self.trainers:
            self._say_at = now + SAY_S
        elif now >= self._say_at:
            self._say_at = now + SAY_S
            of = self._scale.workers
            logger.warning("%d of %d workers have not come: %s", missing, of, self._hint)


def read_look(report: StatusReport) -> Look:
    """Return what a report says of ranks that wait, and workers at work."""
    trainers, workers = report.trainer_statuses, report.worker_statuses
    behind = [rank.is_waiting or rank.oldest_request_ms > PROMPT_MS for rank in trainers]
    busy = [min(1.0, w.recent_busy_ms / w.recent_ms) for w in workers if w.recent_ms > 0]
    return Look(report.workers, fmean(behind or [False]), fmean(busy or [0.0]))
