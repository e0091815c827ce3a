"""`counterpoise balancer`: a balancer that serves trainers and workers on other machines."""

import functools
import logging
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from ...balancer.job.jobs import PlayedJobs
from ...balancer.pool.pool import DEAD_S
from ...balancer.server.loop import new_credentials, serve
from ...balancer.transport.finding import check_open_address, find_address, write_address
from ...balancer.transport.keys import server_keys
from ...balancer.transport.naming import checked_job
from ..console.commands import EXISTING_FOLDER, Command
from ..console.logs import log_options, set_up_logs
from ..console.signals import stop_on_signal

logger = logging.getLogger("counterpoise")

# A balancer that dies this often in a row, each time within QUICK_S, would die again.
MAX_QUICK_DEATHS = 5
QUICK_S = 10.0
LOG_EVERY_S = 10.0
MAX_REASON_CHARACTERS = 300


class RejectedPeers:
    """Logs why peers are rejected: a reason each 10 s at most, and how many there were before it.

    >>> rejected = RejectedPeers(print, clock=iter([0.0, 1.0, 2.0, 12.0]).__next__)
    >>> for reason in ("no key", "no key", "no name", "no key"): rejected(reason)
    refused: no key
    refused: no key (and 2 others before)
    """

    def __init__(
        self, log: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._clock = log, clock
        self._unreported, self._reported_at = 0, float("-inf")

    def __call__(self, reason: str) -> None:
        """Count one rejection, and log it if it is time."""
        now = self._clock()
        if now - self._reported_at < LOG_EVERY_S:
            self._unreported += 1
            return
        more = f" (and {self._unreported} others before)" if self._unreported else ""
        self._log(f"refused: {reason[:MAX_REASON_CHARACTERS]}{more}")
        self._unreported, self._reported_at = 0, now


def supervise(command: Sequence[str]) -> int:
    """Run a command, again and again while it is killed; return its exit status.

    SIGINT and SIGTERM are passed on. One that ends by itself, well or with an error that it has
    reported, is not started again. RuntimeError if it is killed at once several times in a row.
    """
    child: subprocess.Popen[bytes] | None = None
    was_stopped, quick = False, 0

    def forward_signal(number: int, _: object) -> None:
        nonlocal was_stopped
        was_stopped = True
        if child is not None:
            child.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, forward_signal)
    while True:
        started = time.monotonic()
        child = subprocess.Popen(command, start_new_session=True)  # Ctrl-C comes once, from here
        if was_stopped:
            child.terminate()
        status = child.wait()
        if was_stopped or status >= 0:
            return status if status >= 0 else 128 - status
        name = signal.Signals(-status).name
        quick = quick + 1 if time.monotonic() - started < QUICK_S else 1
        if quick >= MAX_QUICK_DEATHS:
            raise RuntimeError(
                f"the balancer was killed by {name}, {quick} times in a row: see what it logged"
            )
        text = "the balancer was killed by %s, and is started again"
        logger.error(text, name, extra={"event": "restart"})


@click.command("balancer", cls=Command, usual=("--listen", "--keys", "--metrics"))
@click.option("--listen", default="tcp://127.0.0.1:5555", show_default=True, metavar="ADDRESS")
@click.option(
    "--keys", type=EXISTING_FOLDER, metavar="FOLDER",
    help="The balancer's keys, made by counterpoise keygen; only allowed peers may connect.",
)  # fmt: skip
@click.option(
    "--job", "jobs", multiple=True, metavar="NAME",
    help="Serve only this job; repeatable. By default all that come.",
)  # fmt: skip
@click.option(
    "--address-file", type=click.Path(dir_okay=False, path_type=Path),
    help="Write here where this balancer listens: others find it by file:///PATH.",
)  # fmt: skip
@click.option(
    "--heartbeat-timeout", type=click.FloatRange(min=2.0), default=DEAD_S, show_default=True,
    metavar="SECONDS",
    help="Give up a worker without a heartbeat for this long (one is sent every second).",
)  # fmt: skip
@click.option(
    "--supervise", "is_supervised", is_flag=True, help="Start the balancer again if it is killed."
)
@click.option("--metrics", metavar="[HOST:]PORT", help="Serve metrics for Prometheus there.")
@click.option(
    "--insecure", is_flag=True, help="Without keys, allow an address that other hosts can reach."
)
@log_options
def command(
    listen: str, keys: Path | None, jobs: tuple[str, ...], address_file: Path | None,
    heartbeat_timeout: float, is_supervised: bool, metrics: str | None, insecure: bool,
    log_level: str, log_format: str,
) -> int:  # fmt: skip
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
    balancer_keys = server_keys(keys) if keys is not None else None
    if is_supervised and listen.endswith((":0", ":*")) and address_file is None:
        raise ValueError(
            f"--supervise needs an address that stays, or --address-file: {listen} has no port"
        )
    only = frozenset(map(checked_job, jobs))
    if is_supervised:
        from ...workers.fleet.processes import product_command  # here: others need nothing of it

        options = {
            "--listen": listen, "--keys": keys, "--address-file": address_file,
            "--heartbeat-timeout": heartbeat_timeout, "--metrics": metrics,
            "--log-level": log_level, "--log-format": log_format,
        }  # fmt: skip
        words = [f"{name}={value}" for name, value in options.items() if value is not None]
        words += [f"--job={job}" for job in jobs] + ["--insecure"] * insecure
        return supervise(product_command(["balancer", *words]))
    written = ""

    def ready(address: str) -> None:
        nonlocal written
        logger.info("listening on %s; Ctrl-C ends", address, extra={"event": "start"})
        if address_file is not None:
            written = write_address(address_file, address)
            logger.info("%s says %s", address_file, written)

    rejected = RejectedPeers(functools.partial(logger.warning, extra={"event": "refuse"}))
    credentials = functools.partial(new_credentials, has_keys=balancer_keys is not None)
    served = PlayedJobs(int(time.time()), credentials, only, heartbeat_timeout)
    with stop_on_signal() as stop:
        if metrics is not None:
            from .metrics import ReportOnRequest, serve_metrics  # here: others need nothing of it

            reports = ReportOnRequest(served.reports)
            serve_metrics(metrics, reports)
            stop = reports.watch(stop)
        serve(served, listen, ready, stop, refused=rejected, keys=balancer_keys)
    if address_file is not None and written == find_address(address_file.absolute().as_uri()):
        address_file.unlink()
    if served.refused:
        logger.info("refused %d messages and peers in all", served.refused)
    logger.info("ends: what was ready has been sent", extra={"event": "drain"})
    return 0
