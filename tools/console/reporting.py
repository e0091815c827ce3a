"""Makes a command's tables and figures, and prints its report: tables, or one JSON object."""

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

progress_console = Console(stderr=True)
# A table without lines.
PLAIN: dict[str, Any] = {
    "box": None, "pad_edge": False, "title_justify": "left", "title_style": "bold"
}  # fmt: skip


def make_table(title: str | None, *columns: str, **settings: Any) -> Table:
    """Return a table with names in the first column, and figures in the others, at their right."""
    table = Table(title=title, **settings)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left")
    return table


def live_progress(refreshes_per_s: float = 10) -> Progress:
    """Return bars on standard error whose tasks have a text, `live`, at their end."""
    return Progress(
        TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[live]}"), console=progress_console,
        refresh_per_second=refreshes_per_s,
    )  # fmt: skip


def emit(report: Mapping[str, object], as_json: bool, *tables: Table) -> None:
    """Print tables, or with as_json the report as one line of standard output."""
    if as_json:
        sys.stdout.write(json.dumps(report, sort_keys=True) + "\n")
        sys.stdout.flush()
        return
    console = Console()
    for table in tables:
        console.print(fitted(table, console))


def fitted(table: Table, console: Console) -> Table:
    """Return the table, or its rows as lists of names and figures where words would be cut."""
    # of a terminal without end: the measure is cut to the width that is given
    endless = console.options.update(max_width=10_000)
    least = Measurement.get(console, endless, table).minimum
    if least <= console.width or not table.show_header:
        return table
    names = [str(column.header).replace("\n", " ") for column in table.columns]
    rows = zip(*(list(column.cells) for column in table.columns), strict=True)
    folded = Table(title=table.title, caption=table.caption, show_header=False, **PLAIN)
    for number, row in enumerate(rows):
        if number:
            folded.add_row()
        for name, cell in zip(names, row, strict=True):
            folded.add_row(name, cell)
    return folded


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median, the least and the most, by name.

    >>> spread([3.0, 1.0, 2.0])
    {'median': 2.0, 'low': 1.0, 'high': 3.0}
    """
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}
