"""Makes a command's tables, and prints its report: tables, or one JSON object as the last line."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

progress_console = Console(stderr=True)


def make_table(title: str | None, *columns: str, **settings: Any) -> Table:
    """Return a table with names in the first column, and figures in the others, at their right."""
    table = Table(title=title, **settings)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left")
    return table


def emit(report: Mapping[str, object], as_json: bool, *tables: Table) -> None:
    """Print tables, or with as_json the report as one line of standard output."""
    if as_json:
        sys.stdout.write(json.dumps(report, sort_keys=True) + "\n")
        sys.stdout.flush()
        return
    console = Console()
    for table in tables:
        console.print(table)


def write_plan(path: Path | None, plan: Mapping[str, object]) -> None:
    """Write a plan for a job to a file, if one is given, and say so on standard error."""
    if path is None:
        return
    path.write_text(json.dumps(plan, indent=1) + "\n", "utf-8")
    progress_console.print(f"wrote {path}", soft_wrap=True)
