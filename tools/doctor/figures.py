"""Findings of the doctor, and the figures of a running job as tables of workers and trainers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from msgspec import structs
from rich.markup import escape
from rich.table import Table

from ...balancer.protocol.status_messages import UNKNOWN_US, StatusReport, WorkerStatus
from ...workers.sources.visible_text import visible
from ..console.reporting import PLAIN

GOOD, WARN, BAD = "good", "warn", "bad"
COLOURS = {GOOD: "green", WARN: "yellow", BAD: "red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. level: good, warn (slower or risky) or bad (will fail)."""

    name: str
    level: str
    found: str
    advice: str = ""


def judge(name: str, found: str, *, bad: str | bool = False, warn: str | bool = False) -> Finding:
    """Return a finding: bad or warn if advice is given for that level, else good.

    >>> judge("port", "taken", warn="choose another").level
    'warn'
    """
    if bad:
        return Finding(name, BAD, found, str(bad))
    return Finding(name, WARN, found, str(warn)) if warn else Finding(name, GOOD, found)


GIB = 2**30
# Rows of a table at most; the report lists peers with problems first.
ROWS = 40
# A terminal at least this wide shows all columns.
WIDE = 100


def seconds(milliseconds: int) -> str:
    """Return a duration as text, "-" if it is negative (not known).

    >>> seconds(350), seconds(12_000), seconds(190_000), seconds(-1)
    ('0.3 s', '12 s', '3 min', '-')
    """
    if milliseconds < 0:
        return "-"
    if milliseconds < 9_950:
        return f"{milliseconds // 100 / 10:.1f} s"
    whole = milliseconds // 1000
    return f"{whole} s" if whole < 120 else f"{whole // 60} min"


def decode_rate(worker: WorkerStatus) -> float:
    """Return samples decoded per second of decoding, 0 if nothing is known."""
    work_ms = worker.recent_decode_ms
    return 1000 * worker.recent_decoded / work_ms if work_ms > 0 else 0.0


def busy_share(worker: WorkerStatus) -> float | None:
    """Return the share of time that a worker was at work, None if it does not report it."""
    work_ms = worker.recent_busy_ms
    if worker.recent_ms <= 0 or work_ms < 0 or not (work_ms or worker.state == "ready"):
        return None
    return min(1.0, work_ms / worker.recent_ms)


def cpu_share(worker: WorkerStatus) -> float | None:
    """Return the CPU that a worker's process used, in cores, None if it has not told."""
    return worker.recent_cpu_ms / worker.recent_ms if worker.recent_cpu_ms > 0 else None


def per_second(count: int, worker: WorkerStatus) -> float:
    """Return a recent count of a worker per second."""
    return 1000 * count / worker.recent_ms if worker.recent_ms > 0 else 0.0


def percent(share: float | None) -> str:
    """Return a share as text, "-" where it is not known."""
    return "-" if share is None else f"{share:.0%}"


def clock_text(ahead_us: int) -> str:
    """Return how far a clock is ahead as text, in milliseconds; "-" if it is not known.

    >>> clock_text(250_000), clock_text(-100), clock_text(UNKNOWN_US)
    ('+250 ms', '-0.1 ms', '-')
    """
    return "-" if ahead_us == UNKNOWN_US else f"{ahead_us / 1000:+.3g} ms"


def report_fields(status: StatusReport) -> dict[str, Any]:
    """Return a status report as JSON-able fields, with the rates of each worker."""
    return structs.asdict(status) | {
        "worker_statuses": [
            {
                **structs.asdict(worker),
                "decoded_per_s": per_second(worker.recent_decoded, worker),
                "probed_per_s": per_second(worker.recent_probed, worker),
                "bytes_per_s": per_second(worker.recent_bytes, worker),
                "busy": busy_share(worker),
                "cpu": cpu_share(worker),
            }
            for worker in status.worker_statuses
        ],
        "trainer_statuses": [structs.asdict(trainer) for trainer in status.trainer_statuses],
        "last_holes": [structs.asdict(hole) for hole in status.last_holes],
    }


def job_tables(status: StatusReport, width: int) -> Iterator[Table]:
    """Yield a table of workers and one of trainers, if there are any."""
    if status.worker_statuses:
        yield _worker_table(status, wide=width >= WIDE)
    if status.trainer_statuses:
        yield _rank_table(status)


def printable(text: str) -> str:
    r"""Return a peer's text on one line, control characters made visible and markup escaped.

    >>> print(printable("a\x1b[red]b"))
    a\x1b\[red]b
    """
    return escape(visible(" ".join(text.split())))


def _worker_table(status: StatusReport, wide: bool) -> Table:
    table = Table(title=f"workers: {status.workers}", **PLAIN)
    table.add_column("worker", overflow="fold")
    table.add_column("state", no_wrap=True)
    names = ["decoded/s", "MB/s", "busy", "decoded", "heard", "clock"]
    if wide:
        names = ["probed/s", *names[:3], "probed", "decoded", "failed", "parts", *names[4:]]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for worker in status.worker_statuses[:ROWS]:
        cells = worker_cells(worker)
        table.add_row(cells["worker"], cells["state"], *[cells[name] for name in names])
    _add_rest(table, status.workers)
    return table


def worker_cells(worker: WorkerStatus) -> dict[str, str]:
    """Return what a table may say of a worker, by the names of columns."""
    return {
        "worker": printable(worker.name),
        "state": _state(worker),
        "probed/s": f"{per_second(worker.recent_probed, worker):.1f}",
        "decoded/s": f"{per_second(worker.recent_decoded, worker):.1f}",
        "MB/s": f"{per_second(worker.recent_bytes, worker) / 1e6:.1f}",
        "busy": percent(busy_share(worker)),
        "CPU": percent(cpu_share(worker)),
        "probed": str(worker.probed),
        "decoded": str(worker.decoded),
        "failed": str(worker.failed),
        "parts": str(worker.parts),
        "heard": seconds(worker.last_message_ms),
        "clock": clock_text(worker.ahead_us),
    }


def _state(worker: WorkerStatus) -> str:
    if worker.unresponsive:
        return "[yellow]late[/]"
    if worker.state == "ready":
        return "at work" if worker.parts else "idle"
    return {"waiting": "no job", "preparing": "opening"}.get(worker.state, printable(worker.state))


def _rank_table(status: StatusReport) -> Table:
    table = Table(title=f"trainer processes: {status.trainers}", **PLAIN)
    for name in ("ranks", "state", "asked for", "since", "needs", "clock"):
        table.add_column(name, overflow="fold")
    for trainer in status.trainer_statuses[:ROWS]:
        is_waited_for = trainer.oldest_request_ms >= 0
        table.add_row(
            printable(trainer.ranks),
            "[yellow]waits[/]" if trainer.is_waiting else printable(trainer.state),
            f"step {trainer.step}.{trainer.microbatch}" if is_waited_for else "-",
            seconds(trainer.oldest_request_ms),
            printable(trainer.missing) or "-",
            clock_text(trainer.ahead_us),
        )
    _add_rest(table, status.trainers)
    return table


def _add_rest(table: Table, total: int) -> None:
    if total > table.row_count:
        table.add_row(f"and {total - table.row_count} more")
