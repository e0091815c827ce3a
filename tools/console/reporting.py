"""Prints a command's report: tables, or one JSON object as the last line for programs."""

import json
import sys
from collections.abc import Mapping

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
