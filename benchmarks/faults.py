"""`make bench NAME=faults`: checks that jobs with faults deliver what a local loop does."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import click
from rich.progress import track

from counterpoise.balancer.job.job_events import logger
from counterpoise.balancer.parties.messages import BeatBack, LeaveJob, TrainerBeat
from counterpoise.balancer.pool.messages import PoolBeat
from counterpoise.balancer.protocol.messages import Bye
from counterpoise.tools.console.reporting import PLAIN, emit, make_table, progress_console
from tests.balancer.job.cluster import Cluster, Setting
from tests.balancer.job.test_job import run_setting

# Of a seed that is replayed so many messages are printed, so many characters of each.
EVENTS, CHARACTERS = 40, 160
# What peers repeat at an end, or all the time, is left out there.
REPEATED = BeatBack, TrainerBeat, PoolBeat, LeaveJob, Bye
KINDS: dict[str, Callable[[Setting], bool]] = {
    "a network that loses, doubles and delays": lambda its: its.loses > 0,
    "workers killed": lambda its: its.kills > 0,
    "the balancer started again": lambda its: its.restarts,
    "a sample that kills its worker": lambda its: its.killer >= 0,
    "broken samples": lambda its: bool(its.broken),
    "ranks of several processes": lambda its: its.sharers > 1,
}
WRONG = "different", "stuck", "left behind", "failed"


@click.command("faults")
@click.option("--seeds", default=1000, show_default=True)
@click.option("--first", default=0, show_default=True, help="The first seed.")
@click.option("--seed", type=int, help="Replay this one seed and print its last messages.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def command(seeds: int, first: int, seed: int | None, as_json: bool) -> int:
    """Kill, lose and delay; compare every delivered batch with a local loop's.

    Each seed is a job on a simulated network: 1 to 3 ranks, 1 to 4 workers, up to 90 samples, all
    faults drawn. Exit status 1 if a batch was lost, came twice or differs, if a job did not end, or
    if anything was left of it. With real processes: `make faults`.

    \b
    Examples:
      make bench NAME=faults ARGS="--seeds 1000"
      make bench NAME=faults ARGS="--seed 17"
    """  # noqa: D301
    if seeds < 1:
        raise ValueError(f"--seeds is {seeds}: give at least 1")
    if seed is not None:
        return 1 if _replay(seed) else 0
    began = time.perf_counter()
    wrong: dict[int, str] = {}
    kinds, kills = Counter[str](), 0
    numbers = range(first, first + seeds)
    for number in track(numbers, "seeds", console=progress_console, transient=True):
        setting = Setting(number)
        kinds.update(kind for kind, holds in KINDS.items() if holds(setting))
        kills += setting.kills
        if kind := _what_is_wrong(number)[0]:
            wrong[number] = kind
    for number in [*wrong][:3]:
        _replay(number)
    counts = Counter(wrong.values())
    report: dict[str, Any] = {
        "seeds": seeds,
        "kills": kills,
        **{kind.replace(" ", "_"): counts[kind] for kind in WRONG},
        "failed_seeds": [*wrong][:20],
        "seeds_with": {kind: round(kinds[kind] / seeds, 3) for kind in KINDS},
        "seconds": round(time.perf_counter() - began, 2),
    }
    table = make_table(None, "", "", show_header=False, **PLAIN)
    for name, value in report.items():
        table.add_row(name.replace("_", " "), str(value))
    emit(report, as_json, table)
    return 1 if wrong else 0


def _what_is_wrong(seed: int) -> tuple[str, str]:
    """Play a seed; return what kind of WRONG it shows, and in which words; "" for nothing.

    "different" is also what was lost or came twice.
    """
    try:
        with mock.patch.object(logger, "disabled", True):  # it tells of every worker that is lost
            run_setting(seed)
    except AssertionError as error:
        text = str(error)
        if text.startswith("stuck"):
            return "stuck", text
        # As Cluster.end tells what is left.
        is_left = text.startswith(("kept:", "the pool keeps")) or not text
        return "left behind" if is_left else "different", text
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"
    return "", ""


def _replay(seed: int) -> str:
    """Play a seed and print its faults, what is wrong and its last messages to standard error."""
    with _told() as events:
        kind, text = _what_is_wrong(seed)
    setting = Setting(seed)
    faults = [name for name, holds in KINDS.items() if holds(setting)]
    click.echo(f"seed {seed} ({', '.join(faults) or 'no faults'}): ", err=True, nl=False)
    click.echo(f"{kind}: {text:.{10 * CHARACTERS}}" if kind else "nothing wrong", err=True)
    for line in events:
        click.echo(f"  {line}", err=True)
    return kind


@contextmanager
def _told() -> Iterator[deque[str]]:
    """Give the last messages that peers and the balancer send within the block."""
    events: deque[str] = deque(maxlen=EVENTS)
    handle, send = Cluster.handle, Cluster._send

    def note(cluster: Cluster, way: str, message: Any) -> None:
        if not isinstance(message, REPEATED):
            events.append(f"{cluster.now:8.3f} {way}: {message!s:.{CHARACTERS}}")

    def handled(cluster: Cluster, peer: bytes, message: Any, frames: Any = ()) -> None:
        note(cluster, f"{peer.decode()} to balancer", message)
        handle(cluster, peer, message, frames)

    def sent(cluster: Cluster, sends: Any) -> None:
        for each in sends:
            note(cluster, f"balancer to {each.peer.decode()}", each.message)
        send(cluster, sends)

    with mock.patch.object(Cluster, "handle", handled), mock.patch.object(Cluster, "_send", sent):
        yield events
