"""Workers as processes of this host, or of a Slurm job's other hosts, started by srun."""

import logging
import signal
import subprocess
from collections.abc import Sequence

from .engine import HOPELESS, STOP_S, end, product_command

logger = logging.getLogger(__name__)


class Processes:
    """An engine of processes; `launch` are the words before a worker's, as srun's."""

    def __init__(
        self,
        address: str,
        words: Sequence[str],
        launch: Sequence[str] = (),
        hint: str = "see what they logged",
    ) -> None:
        """address: the balancer's."""
        self.hint = hint
        self._end_signal = signal.SIGUSR1 if launch else signal.SIGTERM
        self._command = [*launch, *product_command(["worker", address, *words])]
        self._running: list[subprocess.Popen[bytes]] = []
        self._leaving: list[subprocess.Popen[bytes]] = []

    def start(self, workers: int) -> None:
        """Start workers until there are so many."""
        self._leaving = [each for each in self._leaving if each.poll() is None]
        for each in [each for each in self._running if each.poll() is not None]:
            self._running.remove(each)
            if each.returncode in HOPELESS:
                raise RuntimeError(f"a worker ended with status {each.returncode}, see its log")
            logger.warning("a worker ended with status %d", each.returncode)
        while len(self._running) < workers:
            # A session of its own: a terminal's Ctrl-C is for who drains the workers.
            self._running.append(subprocess.Popen(self._command, start_new_session=True))

    def drain(self, workers: int) -> None:
        """Ask those that came last to end."""
        for each in self._running[workers:]:
            each.send_signal(self._end_signal)
            self._leaving.append(each)
        del self._running[workers:]

    def stop(self) -> None:
        """End the workers."""
        self.drain(0)
        for each in self._leaving:
            end(each, STOP_S)


def srun_words(cpus: int, het_group: int | None) -> list[str]:
    """Return the words that start a worker in a Slurm job, in its part `het_group`.

    >>> srun_words(1, 1)
    ['srun', '--het-group=1', '--nodes=1', '--ntasks=1', '--cpus-per-task=1', '--exact']
    """
    group = [] if het_group is None else [f"--het-group={het_group}"]
    return ["srun", *group, "--nodes=1", "--ntasks=1", f"--cpus-per-task={cpus}", "--exact"]
