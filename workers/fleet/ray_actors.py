"""Workers as actors of a Ray cluster: each runs the worker's command as a process of its own."""

import importlib
import logging
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .processes import FOLDER, STOP_S, product_command

logger = logging.getLogger(__name__)


def import_ray(what: str = "a fleet on Ray") -> Any:
    """Return the module ray; ValueError if it is not installed. what: needs it."""
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise ValueError(f"{what} needs Ray; pip install 'counterpoise[ray]'") from None


class WorkerActor:
    """Runs a worker until it ends by itself, again where it is killed.

    Its process is another one than Ray's: it may be killed for the memory of a sample, and what it
    does with signals and threads is as everywhere else.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._leaves = False

    def run(self, words: Sequence[str], keys: Mapping[str, str]) -> int:
        """Run a worker with these keys, the contents of files; return its exit status."""
        with tempfile.TemporaryDirectory(prefix=FOLDER) as folder:
            for name, text in keys.items():
                path = Path(folder, name)
                path.touch(mode=0o600)
                path.write_text(text)
            own = ["--keys", folder] if keys else []
            while not self._leaves:
                command = product_command([*words, *own])
                self._process = subprocess.Popen(command, start_new_session=True)
                if (status := self._process.wait()) >= 0:
                    return status
                logger.warning("a worker was killed by signal %d", -status)
        return 0

    def ready(self) -> None:
        """Return: the actor has been placed."""

    def drain(self) -> None:
        """Have the worker finish what it has, and end."""
        self._leaves = True
        if self._process is not None:
            self._process.terminate()


@dataclass(slots=True)
class _Started:
    """An actor, its call of `run`, and one that returns once it is placed; leave_by: at last."""

    actor: Any
    run: Any
    ready: Any
    leave_by: float = 0.0


class RayActors:
    """An engine of Ray actors, which belong to the process that makes this."""

    hint = (
        "Ray has no node with what they ask for free; `ray status` shows them as demand, which an "
        "autoscaler meets"
    )

    def __init__(
        self,
        address: str,
        words: Sequence[str],
        options: Mapping[str, Any],
        keys: Path | None = None,
    ) -> None:
        """Make it for the balancer at an address.

        options: of Ray's actors, num_cpus and label_selector, say; keys: a worker's folder.
        """
        self._ray = ray = import_ray()
        self._words = ["worker", address, *words]
        self._keys = {} if keys is None else {p.name: p.read_text() for p in keys.iterdir()}
        self._make = ray.remote(WorkerActor).options(
            max_restarts=-1, max_concurrency=3,
            **{"scheduling_strategy": "SPREAD", **options},
        )  # fmt: skip
        self._running: list[_Started] = []
        self._leaving: list[_Started] = []

    def start(self, workers: int) -> None:
        """Ask Ray for actors until there are so many; it restarts those that are lost."""
        self._reap()
        while len(self._running) < workers:
            actor = self._make.remote()
            call = actor.run.options(max_task_retries=-1).remote(self._words, self._keys)
            self._running.append(_Started(actor, call, actor.ready.remote()))

    def drain(self, workers: int) -> None:
        """Ask those that came last to end; one without a place yet is not waited for."""
        for each in self._running[workers:]:
            if self._is_done(each.ready):
                each.actor.drain.remote()
                each.leave_by = time.monotonic() + STOP_S
                self._leaving.append(each)
            else:
                self._ray.kill(each.actor)
        del self._running[workers:]

    def stop(self) -> None:
        """End the actors."""
        self.drain(0)
        while self._leaving:
            self._ray.wait([each.run for each in self._leaving], timeout=1.0)
            self._reap()

    def _reap(self) -> None:
        """Free the places of actors whose worker has ended; RuntimeError if another would, too."""
        for each in list(self._leaving):
            if self._is_done(each.run) or time.monotonic() > each.leave_by:
                self._ray.kill(each.actor)
                self._leaving.remove(each)
        for each in [each for each in self._running if self._is_done(each.run)]:
            self._running.remove(each)
            try:
                status = self._ray.get(each.run)
            except self._ray.exceptions.RayError as error:
                logger.warning("a worker's actor has ended: %s", error)
                continue
            self._ray.kill(each.actor)
            if status:
                raise RuntimeError(f"a worker ended with status {status}, see its log")

    def _is_done(self, call: Any) -> bool:
        return bool(self._ray.wait([call], timeout=0)[0])
