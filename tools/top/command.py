"""The command `counterpoise top`: shows a running job, live, by its balancer's status reports."""

import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live

from ...balancer.transport.keys import peer_keys
from ..console.reporting import emit
from ..doctor.asking import questions
from ..doctor.installation import find_role
from .view import History, as_json, screen

ANSWER_S = 5.0


@click.command("top")
@click.argument("address", metavar="ADDRESS")
@click.option(
    "--keys",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="A trainer's keys, made by counterpoise keygen.",
)
@click.option(
    "--interval", default=1.0, show_default=True, type=click.FloatRange(0.1, 60), metavar="SECONDS",
    help="Ask this often.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Ask twice, an interval apart, print, and end.")
@click.option("--json", "as_object", is_flag=True, help="With --once, print one JSON object.")
def command(address: str, keys: Path | None, interval: float, once: bool, as_object: bool) -> int:
    """Show the job of the balancer at ADDRESS, live: who waits for whom, and how fast workers are.

    It takes no part in the job. q or Ctrl-C ends it. Exit status: 0; 3 where no balancer answers.

    \b
    Example:
      counterpoise top tcp://10.0.0.1:5555 --keys keys/trainer
      counterpoise top tcp://10.0.0.1:5555 --once --json
    """  # noqa: D301
    if as_object and not once:
        raise ValueError("--json is for --once: a screen is no object")
    own = peer_keys(keys, find_role(keys)) if keys else None
    history, console = History(), Console()
    once = once or not console.is_terminal
    with questions(address, own) as ask:

        def look() -> None:
            history.add(time.monotonic(), ask(ANSWER_S))

        look()
        if once:
            if not history.error:
                time.sleep(interval)
                look()
            _print(address, history, console, as_object)
        else:
            _show(address, history, console, interval, look)
    return 3 if history.last is None else 0


def _print(address: str, history: History, console: Console, as_object: bool) -> None:
    if as_object:
        emit(as_json(history), True)
    else:
        console.print(screen(address, history, time.strftime("%X"), console.width, 10_000))


def _show(
    address: str, history: History, console: Console, interval: float, look: Callable[[], None]
) -> None:
    """Fill the screen, again and again, until q or Ctrl-C."""
    with (
        _keys() as pressed,
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        try:
            while True:
                width, height = console.size
                clock = time.strftime("%X")
                live.update(screen(address, history, clock, width, height), refresh=True)
                if pressed(interval) == "q":
                    return
                look()
        except KeyboardInterrupt:
            return


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Give a function that returns the key pressed within some seconds, "" if none is."""
    if not sys.stdin.isatty():
        yield lambda seconds: time.sleep(seconds) or ""
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield (
            lambda seconds: (
                sys.stdin.read(1) if select.select([sys.stdin], [], [], seconds)[0] else ""
            )
        )
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
