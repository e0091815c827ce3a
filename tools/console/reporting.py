"""Prints a command's report: tables, or one JSON object as the last line; and writes plans."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

progress_console = Console(stderr=True)


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
