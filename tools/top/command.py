"""The command `counterpoise top`: shows a running job, live, by its balancer's status reports."""

import time
from collections.abc import Callable
from contextlib import suppress

import click
from rich.console import Console
from rich.live import Live

from ...balancer.transport.keys import PeerKeys
from ..console.commands import Command
from ..console.reporting import emit
from ..doctor.asking import all_jobs, asking_options
from .view import Sight, as_json, screen

ANSWER_S = 5.0


@click.command("top", cls=Command)
@asking_options
@click.option(
    "--interval", default=1.0, show_default=True, type=click.FloatRange(0.1, 60), metavar="SECONDS",
    help="Ask this often.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Ask twice, an interval apart, print, and end.")
@click.option("--json", "as_object", is_flag=True, help="With --once, print one JSON object.")
def command(
    address: str, keys: PeerKeys | None, interval: float, job: str, once: bool, as_object: bool
) -> int:
    """Show the jobs of the balancer at ADDRESS, live: who waits for whom, how fast workers are.

    It takes no part in them. Ctrl-C ends it. Exit status: 0; 3 where no balancer answers.

    \b
    Example:
      counterpoise top tcp://10.0.0.1:5555 --keys keys/trainer
      counterpoise top tcp://10.0.0.1:5555 --once --json
    """  # noqa: D301
    if as_object and not once:
        raise ValueError("--json is for --once: a screen is no object")
    sight, console = Sight(), Console()
    once = once or not console.is_terminal
    with all_jobs(address, keys, job) as ask:

        def look() -> None:
            sight.add(time.monotonic(), ask(ANSWER_S))

        look()
        if once:
            if not sight.error:
                time.sleep(interval)
                look()
            _print(address, sight, console, as_object)
        else:
            _show(address, sight, console, interval, look)
    return 3 if sight.error else 0


def _print(address: str, sight: Sight, console: Console, as_object: bool) -> None:
    if as_object:
        jobs = {name: as_json(history) for name, history in sight.jobs.items()}
        emit({"jobs": jobs, "error": sight.error}, True)
    else:
        console.print(screen(address, sight, time.strftime("%X"), console.width, 10_000))


def _show(
    address: str, sight: Sight, console: Console, interval: float, look: Callable[[], None]
) -> None:
    """Fill the screen, again and again, until Ctrl-C."""
    with (
        suppress(KeyboardInterrupt),
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        while True:
            width, height = console.size
            clock = time.strftime("%X")
            live.update(screen(address, sight, clock, width, height), refresh=True)
            time.sleep(interval)
            look()
