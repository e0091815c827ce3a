"""What `counterpoise top` shows of a job: pure functions of the status reports of some seconds."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ...balancer.protocol.status_messages import StatusReport, TrainerStatus
from ..doctor.figures import per_second, percent, printable, report_fields, seconds, worker_cells

# Shares of time are of the last seconds, at most.
WINDOW_S = 10.0
# Titles and heads of two tables, and errors at most.
TABLE_LINES, MOST_ERRORS = 4, 3
# A terminal at least this wide shows all columns.
WIDE = 110


@dataclass(slots=True)
class History:
    """The reports of the last seconds: (when, report), and why the last question had no answer."""

    reports: deque[tuple[float, StatusReport]] = field(default_factory=deque)
    error: str = ""

    def add(self, now: float, answer: StatusReport | str) -> None:
        """Take an answer, or the reason why there is none."""
        if isinstance(answer, str):
            self.error = answer
            return
        self.error = ""
        self.reports.append((now, answer))
        while self.reports[0][0] < now - WINDOW_S and len(self.reports) > 2:
            self.reports.popleft()

    @property
    def last(self) -> StatusReport | None:
        """The last report."""
        return self.reports[-1][1] if self.reports else None

    def waits(self) -> dict[str, float]:
        """Return the share of the last seconds in which trainers waited for data, by their ranks.

        Acknowledgements tell of waits that are over; one that goes on is as old as its request.
        """
        if len(self.reports) < 2:
            return {}
        (begin, first), (end, last) = self.reports[0], self.reports[-1]
        before = {trainer.ranks: trainer.waited_ms for trainer in first.trainer_statuses}
        shares = {}
        for trainer in last.trainer_statuses:
            waited_ms = trainer.waited_ms - before.get(trainer.ranks, trainer.waited_ms)
            going_on_ms = trainer.oldest_request_ms if trainer.is_waiting else 0
            share = max(waited_ms, going_on_ms) / (1000 * (end - begin))
            shares[trainer.ranks] = max(0.0, min(1.0, share))
        return shares

    def wait(self) -> float:
        """Return the share of the trainer that waits most."""
        return max(self.waits().values(), default=0.0)


@dataclass(slots=True)
class Sight:
    """What is known of a balancer: its jobs, and why the last question had no answer."""

    jobs: dict[str, History] = field(default_factory=dict)
    error: str = ""

    def add(self, now: float, answer: dict[str, StatusReport | str] | str) -> None:
        """Take an answer for each job, or the reason why there is none."""
        self.error = answer if isinstance(answer, str) else ""
        if not isinstance(answer, str):
            self.jobs = {name: self.jobs.get(name, History()) for name in answer}
            for name, report in answer.items():
                self.jobs[name].add(now, report)

    def worst(self) -> str | None:
        """Return the job whose ranks wait most; None without any."""
        return max(self.jobs, key=lambda name: self.jobs[name].wait(), default=None)


def as_json(history: History) -> dict[str, Any]:
    """Return a job's last report as JSON-able fields, with waits and leads."""
    last = history.last
    if last is None:
        return {"error": history.error}
    waits = history.waits()
    fields = report_fields(last)
    for trainer, status in zip(fields["trainer_statuses"], last.trainer_statuses, strict=True):
        trainer["wait_share"] = waits.get(status.ranks)
        trainer["lead"] = lead(status, last)
    return {**fields, "wait_share": history.wait() if waits else None, "error": history.error}


def lead(trainer: TrainerStatus, status: StatusReport) -> int | None:
    """Return how many steps a trainer is ahead of the slowest, None where that is not known."""
    if trainer.step < 0 or status.front < 0:
        return None
    return max(0, trainer.step - status.front)


def screen(address: str, sight: Sight, clock: str, width: int, height: int) -> RenderableType:
    """Return what fills a terminal of this size; clock: the time, as text.

    Of several jobs each has a line, and the one that waits most all the rest.
    """
    state = f"[red]{printable(sight.error)}[/]" if sight.error else clock
    parts: list[RenderableType] = [
        _line(f"[bold]counterpoise top[/]  {printable(address)}  {state}")
    ]
    if (worst := sight.worst()) is None:
        return Group(*parts, _line("" if sight.error else "no job: waits for a trainer"))
    if len(sight.jobs) > 1:
        shown = sorted(sight.jobs)[: max(1, height // 4)]
        parts += [_job_line(name, sight.jobs[name], name == worst) for name in shown]
        if more := len(sight.jobs) - len(shown):
            parts.append(_line(f"  and {more} more jobs"))
    history = sight.jobs[worst]
    last = history.last
    if last is None:
        return Group(*parts, _line(f"[red]{printable(history.error)}[/]"))
    parts += [*_head(worst, history, last), Text("")]
    errors = list(_errors(last))[:MOST_ERRORS]
    rows = max(2, height - len(parts) - TABLE_LINES - len(errors))
    ranks = min(len(last.trainer_statuses), max(1, rows // 3))
    workers = max(1, rows - max(1, ranks))
    wide = width >= WIDE
    parts += [_ranks(history, last, ranks, wide), _workers(last, workers, wide)]
    parts += [_line(f"[red]{error}[/]") for error in errors]
    return Group(*parts)


def _line(markup: str) -> Text:
    line = Text.from_markup(markup, overflow="ellipsis")
    line.no_wrap = True
    return line


def _job_line(name: str, history: History, is_shown: bool) -> Text:
    last, mark = history.last, "[bold]>[/] " if is_shown else "  "
    if last is None:
        return _line(f"{mark}{printable(name)}: {printable(history.error)}")
    return _line(
        f"{mark}{printable(name)}: {_place(last)}, waits {history.wait():.0%}, {_rate(last)}, "
        f"{last.trainers} trainers, {last.workers} workers"
    )


def _place(last: StatusReport) -> str:
    if last.epoch < 0:
        return "no run"
    at = f"step {last.front}" if last.front >= 0 else "before its first planned step"
    return f"epoch {last.epoch}, {at}"


def _rate(last: StatusReport) -> str:
    rate = sum(per_second(worker.recent_decoded, worker) for worker in last.worker_statuses)
    mb = sum(per_second(worker.recent_bytes, worker) for worker in last.worker_statuses) / 1e6
    return f"{rate:,.0f} samples/s, {mb:,.1f} MB/s"


def _head(job: str, history: History, last: StatusReport) -> Iterator[Text]:
    """Yield the lines about a job as a whole."""
    if last.trouble or history.error:
        yield _line(f"[red]{printable(last.trouble or history.error)}[/]")
    waits = history.waits()
    worst = max(waits, key=lambda ranks: waits[ranks], default="")
    exposed = f"exposed wait {waits[worst]:.0%} (ranks {worst})" if waits else "exposed wait -"
    limit = f" of {last.budget_bytes / 1e6:,.0f}" if 0 < last.budget_bytes < 2**50 else ""
    yield _line(f"job {printable(job)}   {_place(last)}   [bold]{exposed}[/]")
    held = f"{last.held_bytes / 1e6:,.0f}{limit} MB"
    yield _line(
        f"workers {last.workers} ({last.lost} lost)   parts {last.parts}   buffer {held}   "
        f"holes {last.holes}"
    )
    waiting = f"   waits for {printable(last.waiting)}" if last.waiting else ""
    yield _line(f"{_rate(last)}{waiting}")


def _table(title: str, *columns: tuple[str, int]) -> Table:
    """Return a table of columns, each with its width: 0 takes what is left."""
    table = Table(box=None, pad_edge=False, expand=True, title=title, title_justify="left")
    table.title_style = "bold"
    for number, (name, width) in enumerate(columns):
        table.add_column(
            name, no_wrap=True, overflow="ellipsis", width=width or None,
            ratio=None if width else 1,
            justify="right" if number and width and name != "state" else "left",
        )  # fmt: skip
    return table


def _ranks(history: History, last: StatusReport, rows: int, wide: bool) -> Table:
    """Return trainers, those that wait for longest first: the report has them so."""
    waits = history.waits()
    columns = [("ranks", 10), ("waits", 6), ("step", 8), ("lead", 5), ("since", 7), ("needs", 0)]
    if wide:
        columns[1:1] = [("state", 10)]
    table = _table(f"ranks: {last.trainers} processes", *columns)
    for trainer in last.trainer_statuses[:rows]:
        ahead = lead(trainer, last)
        cells = [
            percent(waits.get(trainer.ranks)),
            f"{trainer.step}.{trainer.microbatch}" if trainer.step >= 0 else "-",
            "-" if ahead is None else str(ahead),
            seconds(trainer.oldest_request_ms),
            printable(trainer.missing) or "-",
        ]
        table.add_row(printable(trainer.ranks), *([printable(trainer.state)] * wide), *cells)
    return table


def _workers(last: StatusReport, rows: int, wide: bool) -> Table:
    columns = [("worker", 0), ("state", 8), ("decoded/s", 9), ("busy", 5), ("CPU", 5)]
    columns += [("parts", 6), ("heard", 7)]
    if wide:
        columns[3:3] = [("MB/s", 8), ("probed", 9), ("decoded", 9), ("failed", 7)]
    table = _table(f"workers: {last.workers}", *columns)
    shown = last.worker_statuses
    if last.workers > rows:
        shown = shown[: rows - 1]
    for worker in shown:
        cells = worker_cells(worker)
        table.add_row(*(cells[name] for name, _ in columns))
    if last.workers > len(shown):
        table.add_row(f"and {last.workers - len(shown)} more")
    return table


def _errors(last: StatusReport) -> Iterator[str]:
    """Yield what went wrong last."""
    if last.last_lost:
        ago = seconds(last.lost_ms)
        yield f"lost worker {printable(last.last_lost[-1])} {ago} ago ({last.lost} in all)"
    for hole in last.last_holes[-1:]:
        yield f"hole {printable(hole.key)}: {printable(hole.reason)} ({last.holes} in this run)"
    for reason in last.rejected_workers[-1:]:
        yield f"turned away: {printable(reason)}"
