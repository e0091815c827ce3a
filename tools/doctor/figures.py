"""Findings of the doctor, and the figures of a running job as text, for doctor, top and metrics."""

from dataclasses import dataclass
from typing import Any

from msgspec import structs
from rich.markup import escape

from ...balancer.protocol.status_messages import StatusReport, WorkerStatus
from ...workers.sources.visible_text import visible

GOOD, WARN, BAD = "good", "warn", "bad"
COLOURS = {GOOD: "green", WARN: "yellow", BAD: "red"}
GIB = 2**30


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


def per_second(count: int, worker: WorkerStatus) -> float:
    """Return a recent count of a worker per second."""
    return 1000 * count / worker.recent_ms if worker.recent_ms > 0 else 0.0


def percent(share: float | None) -> str:
    """Return a share as text, "-" where it is not known."""
    return "-" if share is None else f"{share:.0%}"


def report_fields(status: StatusReport) -> dict[str, Any]:
    """Return a status report as JSON-able fields, with the rates of each worker."""
    return structs.asdict(status) | {
        "worker_statuses": [
            {
                **structs.asdict(worker),
                "decoded_per_s": per_second(worker.recent_decoded, worker),
                "bytes_per_s": per_second(worker.recent_bytes, worker),
                "busy": busy_share(worker),
            }
            for worker in status.worker_statuses
        ],
        "trainer_statuses": [structs.asdict(trainer) for trainer in status.trainer_statuses],
        "last_holes": [structs.asdict(hole) for hole in status.last_holes],
    }


def printable(text: str) -> str:
    r"""Return a peer's text on one line, control characters made visible and markup escaped.

    >>> print(printable("a\x1b[red]b"))
    a\x1b\[red]b
    """
    return escape(visible(" ".join(text.split())))


def worker_cells(worker: WorkerStatus) -> dict[str, str]:
    """Return what a table may say of a worker, by the names of columns."""
    state = worker.state
    if worker.unresponsive:
        state = "[yellow]late[/]"
    elif worker.state == "ready":
        state = "at work" if worker.parts else "idle"
    return {
        "worker": printable(worker.name),
        "state": state,
        "decoded/s": f"{per_second(worker.recent_decoded, worker):.1f}",
        "MB/s": f"{per_second(worker.recent_bytes, worker) / 1e6:.1f}",
        "busy": percent(busy_share(worker)),
        "CPU": percent(per_second(worker.recent_cpu_ms, worker) / 1000 or None),
        "probed": str(worker.probed),
        "decoded": str(worker.decoded),
        "failed": str(worker.failed),
        "parts": str(worker.parts),
        "heard": seconds(worker.last_message_ms),
    }
