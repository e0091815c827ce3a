"""Figures of a running job in the form that people read, and the tables of workers and trainers."""

from collections.abc import Iterator
from typing import Any

from msgspec import structs
from rich.markup import escape
from rich.table import Table

from ...balancer.protocol.clock_offset import Offset
from ...balancer.protocol.messages import StatusReport, TrainerStatus, WorkerStatus

GIB = 2**30
# Rows of a table; the most telling come first.
ROWS = 40
# From this width on a table has all its columns.
WIDE = 100


def seconds(milliseconds: int) -> str:
    """Return a duration for people.

    >>> seconds(350), seconds(12_000), seconds(190_000), seconds(-1)
    ('0.3 s', '12 s', '3 min', '-')
    """
    if milliseconds < 0:
        return "-"
    if milliseconds < 9_950:
        return f"{milliseconds // 100 / 10:.1f} s"
    whole = milliseconds // 1000
    return f"{whole} s" if whole < 120 else f"{whole // 60} min"


def speed(note: WorkerStatus) -> float:
    """Return samples decoded per second of work, 0 where nothing is known.

    Where measuring takes decoding, that is what a probe lease is spent on.
    """
    work_ms = note.recent_decode_ms if note.recent_decode_ms > 0 else note.recent_probe_ms
    return 1000 * note.recent_decoded / work_ms if work_ms > 0 else 0.0


def kept_busy(note: WorkerStatus) -> float | None:
    """Return the part of the time that a worker was at work, None where it does not tell."""
    work_ms = note.recent_probe_ms + note.recent_decode_ms
    if note.recent_ms <= 0 or work_ms < 0 or not (work_ms or note.state == "ready"):
        return None
    return min(1.0, work_ms / note.recent_ms)


def per_second(count: int, note: WorkerStatus) -> float:
    """Return how much of something a worker does in a second, lately."""
    return 1000 * count / note.recent_ms if note.recent_ms > 0 else 0.0


def clock_text(offset: Offset) -> str:
    """Return how far a clock is ahead, in milliseconds.

    >>> clock_text(Offset(250_000, 400)), clock_text(Offset(100, 300)), clock_text(Offset())
    ('+250 ±0.4 ms', '±0.4 ms', '-')
    """
    if not offset.is_known:
        return "-"
    if not offset.least_us():
        return f"±{(abs(offset.ahead_us) + offset.error_us) / 1000:.1f} ms"
    return f"{offset.ahead_us / 1000:+.3g} ±{offset.error_us / 1000:.1f} ms"


def as_report(overview: StatusReport) -> dict[str, Any]:
    """Return an overview as JSON-able fields, with each worker's rates."""
    report = structs.asdict(overview)
    del report["notes"]
    return report | {
        "workers_known": [worker_report(note) for note in overview.notes],
        "ranks": [structs.asdict(note) for note in overview.ranks],
        "last_holes": [structs.asdict(hole) for hole in overview.last_holes],
    }


def worker_report(note: WorkerStatus) -> dict[str, Any]:
    """Return a worker's note with rates per second and the part of the time it was at work."""
    return {
        **structs.asdict(note),
        "decoded_per_s": per_second(note.recent_decoded, note),
        "probed_per_s": per_second(note.recent_probed, note),
        "bytes_per_s": per_second(note.recent_bytes, note),
        "busy": kept_busy(note),
    }


def job_tables(overview: StatusReport, width: int) -> Iterator[Table]:
    """Return the tables of workers and of trainers, as far as there are any."""
    if overview.notes:
        yield _worker_table(overview, wide=width >= WIDE)
    if overview.ranks:
        yield _rank_table(overview)


def printable(text: str) -> str:
    r"""Return a peer's text without what would move the cursor or change colours.

    >>> print(printable("a\x1b[red]b"))
    a?\[red]b
    """
    return escape("".join(each if each.isprintable() else "?" for each in text))


def _worker_table(overview: StatusReport, wide: bool) -> Table:
    table = _table(f"workers: {overview.workers}")
    table.add_column("worker", overflow="fold")
    table.add_column("state", no_wrap=True)
    names = ["decoded/s", "MB/s", "busy", "decoded", "heard", "clock"]
    if wide:
        names = ["probed/s", *names[:3], "probed", "decoded", "failed", "leases", *names[4:]]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for note in overview.notes[:ROWS]:
        cells = _worker_cells(note)
        table.add_row(printable(note.name), _state(note), *[cells[name] for name in names])
    _add_rest(table, overview.workers)
    return table


def _worker_cells(note: WorkerStatus) -> dict[str, str]:
    busy = kept_busy(note)
    return {
        "probed/s": f"{per_second(note.recent_probed, note):.1f}",
        "decoded/s": f"{per_second(note.recent_decoded, note):.1f}",
        "MB/s": f"{per_second(note.recent_bytes, note) / 1e6:.1f}",
        "busy": "-" if busy is None else f"{busy:.0%}",
        "probed": str(note.probed),
        "decoded": str(note.decoded),
        "failed": str(note.failed),
        "leases": str(note.leases),
        "heard": seconds(note.heard_ms),
        "clock": clock_text(Offset(note.ahead_us, note.error_us)),
    }


def _state(note: WorkerStatus) -> str:
    if note.late:
        return "[yellow]late[/]"
    if note.state == "ready":
        return "at work" if note.leases else "idle"
    return {"waiting": "no job", "preparing": "opening"}.get(note.state, printable(note.state))


def _rank_table(overview: StatusReport) -> Table:
    table = _table(f"trainer processes: {overview.trainers}")
    for name in ("ranks", "state", "asked for", "since", "needs", "clock"):
        table.add_column(name, overflow="fold")
    for note in overview.ranks[:ROWS]:
        table.add_row(*_rank_cells(note))
    _add_rest(table, overview.trainers)
    return table


def _rank_cells(note: TrainerStatus) -> tuple[str, ...]:
    asked = f"step {note.step}.{note.microbatch}" if note.asked_ms >= 0 else "-"
    state = "[yellow]waits[/]" if note.waits else printable(note.state)
    clock = clock_text(Offset(note.ahead_us, note.error_us))
    since, needs = seconds(note.asked_ms), printable(note.needs) or "-"
    return printable(note.ranks), state, asked, since, needs, clock


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)


def _add_rest(table: Table, total: int) -> None:
    if total > table.row_count:
        table.add_row(f"and {total - table.row_count} more")
