"""`counterpoise balancer`: a balancer that serves trainers and workers on other machines."""

import functools
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import click

from ...balancer.job.jobs import PlayedJobs
from ...balancer.pool.pool import DEAD_S
from ...balancer.server.loop import new_credentials, serve
from ...balancer.transport.finding import check_open_address, find_address, write_address
from ...balancer.transport.keys import ServerKeys, server_keys
from ...balancer.transport.naming import checked_job
from ...workers.processes.parent_watch import end_with_parent
from ..console.logs import log_options, set_up_logs
from ..console.signals import stop_on_signal

logger = logging.getLogger("counterpoise")

# A balancer that dies this often in a row, each time within QUICK_S, would die again.
MAX_QUICK_DEATHS = 5
QUICK_S = 10.0
_PASSED_ON = (signal.SIGINT, signal.SIGTERM)
LOG_EVERY_S = 10.0
# Reasons that are counted separately; all others count as one, so that peers cannot use up memory.
MAX_REASONS = 100
MAX_REASON_CHARACTERS = 300


class RejectedPeers:
    """Counts the reasons it is called with, and passes them to `log` at most every 10 s.

    >>> rejected = RejectedPeers(print, clock=iter([0.0, 1.0, 12.0]).__next__)
    >>> rejected("no key"); rejected("no key"); rejected("no key")
    refused: no key
    refused: no key (2 times)
    >>> rejected.total
    3
    """

    def __init__(
        self, log: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total = 0
        self._log = log
        self._clock = clock
        self._unreported: Counter[str] = Counter()
        self._reported_at = float("-inf")

    def __call__(self, reason: str) -> None:
        """Count one rejection, and log it if it is time."""
        self.total += 1
        known = reason[:MAX_REASON_CHARACTERS]
        full = len(self._unreported) >= MAX_REASONS and known not in self._unreported
        self._unreported["for other reasons" if full else known] += 1
        now = self._clock()
        if now - self._reported_at >= LOG_EVERY_S:
            self._reported_at = now
            self.report()

    def report(self) -> None:
        """Log the reasons counted since the last report."""
        for reason, times in self._unreported.items():
            self._log(f"refused: {reason}" + (f" ({times} times)" if times > 1 else ""))
        self._unreported.clear()


def supervise(serve: Callable[[], None]) -> int:
    """Run `serve` in a process, again and again while that is killed; return its exit status.

    This process forks the balancer before anything else runs (sockets, threads), passes SIGINT and
    SIGTERM on, and forks again if the balancer is killed by a signal that was not passed on. One
    that ends by itself, well or with an error that it has reported, is not started again.
    RuntimeError if it is killed at once several times in a row.
    """
    quick = 0
    while True:
        started = time.monotonic()
        status, was_stopped = _run(serve)
        if status >= 0:
            return status
        if was_stopped:
            return 128 - status
        name = signal.Signals(-status).name
        quick = quick + 1 if time.monotonic() - started < QUICK_S else 1
        if quick >= MAX_QUICK_DEATHS:
            raise RuntimeError(
                f"the balancer was killed by {name}, {quick} times in a row: see what it logged"
            )
        text = "the balancer was killed by %s, and is started again"
        logger.error(text, name, extra={"event": "restart"})


def _run(serve: Callable[[], None]) -> tuple[int, bool]:
    """Serve in a forked process; return its exit status, below 0 a signal, and if we passed one on.

    Signals wait until the process is there, and in it until it has its own handlers.
    """
    was_stopped = False

    def pass_on(number: int, _: FrameType | None) -> None:
        nonlocal was_stopped
        was_stopped = True
        if child.pid is not None and child.is_alive():
            os.kill(child.pid, number)

    child = multiprocessing.get_context("fork").Process(target=_be_balancer, args=(serve,))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    child.start()
    for each in _PASSED_ON:
        signal.signal(each, pass_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    child.join()
    return child.exitcode or 0, was_stopped


def _be_balancer(serve: Callable[[], None]) -> None:
    """Serve, and end with the exit status that the command line gives its errors."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setpgid(0, 0)  # a terminal's Ctrl-C comes once, from the supervisor
    end_with_parent()  # its thread takes no signals: they are blocked until it has started
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    try:
        serve()
    except (ValueError, OSError, RuntimeError) as error:
        logger.error("%s", error)
        sys.exit(2)


@click.command("balancer")
@click.option("--listen", default="tcp://127.0.0.1:5555", show_default=True, metavar="ADDRESS")
@click.option(
    "--keys",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="The balancer's keys, made by counterpoise keygen; only allowed peers may connect.",
)
@click.option(
    "--job",
    "jobs",
    multiple=True,
    metavar="NAME",
    help="Serve only this job; repeatable. By default all that come.",
)
@click.option(
    "--address-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write here where this balancer listens: others find it by file:///PATH.",
)
@click.option(
    "--heartbeat-timeout",
    type=click.FloatRange(min=2.0),
    default=DEAD_S,
    show_default=True,
    metavar="SECONDS",
    help="Give up a worker without a heartbeat for this long (one is sent every second).",
)
@click.option(
    "--supervise", "is_supervised", is_flag=True, help="Start the balancer again if it is killed."
)
@click.option("--metrics", metavar="[HOST:]PORT", help="Serve metrics for Prometheus there.")
@click.option(
    "--insecure", is_flag=True, help="Without keys, allow an address that other hosts can reach."
)
@log_options
def command(
    listen: str,
    keys: Path | None,
    jobs: tuple[str, ...],
    address_file: Path | None,
    heartbeat_timeout: float,
    is_supervised: bool,
    metrics: str | None,
    insecure: bool,
    log_level: str,
    log_format: str,
) -> int:
    """Serve training jobs: trainers bring them, workers decode for them.

    \b
    Example, three terminals:
      counterpoise balancer --listen tcp://127.0.0.1:5555
      counterpoise worker tcp://127.0.0.1:5555 --root /data
      python train.py        # DataLoader(..., balancer="tcp://127.0.0.1:5555")
    Over a network, after `counterpoise keygen keys`:
      counterpoise balancer --listen tcp://0.0.0.0:5555 --keys keys/balancer
    """  # noqa: D301
    set_up_logs(log_level, log_format)
    check_open_address(listen, insecure or keys is not None)
    own = server_keys(keys) if keys is not None else None
    if is_supervised and listen.endswith((":0", ":*")) and address_file is None:
        raise ValueError(
            f"--supervise needs an address that stays, or --address-file: {listen} has no port"
        )
    only = frozenset(map(checked_job, jobs))
    served = functools.partial(_serve, listen, own, heartbeat_timeout, only, address_file, metrics)
    if is_supervised:
        return supervise(served)
    served()
    return 0


def _serve(
    listen: str,
    keys: ServerKeys | None,
    heartbeat_timeout_s: float,
    only: frozenset[str],
    address_file: Path | None,
    metrics: str | None,
) -> None:
    """Serve until a signal asks to stop, and log who was refused."""
    written = ""

    def ready(address: str) -> None:
        nonlocal written
        logger.info("listening on %s; Ctrl-C ends", address, extra={"event": "start"})
        if address_file is not None:
            written = write_address(address_file, address)
            logger.info("%s says %s", address_file, written)

    rejected = RejectedPeers(functools.partial(logger.warning, extra={"event": "refuse"}))
    credentials = functools.partial(new_credentials, has_keys=keys is not None)
    jobs = PlayedJobs(int(time.time()), credentials, only, heartbeat_timeout_s)
    with stop_on_signal() as stop:
        if metrics is not None:
            from .metrics import ReportOnRequest, serve_metrics  # here: others need nothing of it

            reports = ReportOnRequest(jobs.reports)
            serve_metrics(metrics, reports)
            stop = reports.watch(stop)
        serve(jobs, listen, ready, stop, refused=rejected, keys=keys)
    if address_file is not None and written == find_address(address_file.absolute().as_uri()):
        address_file.unlink()
    rejected.report()
    if rejected.total:
        logger.info("refused %d messages and peers in all", rejected.total)
    logger.info("ends: what was ready has been sent", extra={"event": "drain"})
