"""The list of the papers' numbered tables and figures (`tables.toml`)."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LIST = Path(__file__).with_name("tables.toml")
# The file of a paper's text, below `papers` in a folder beside the data.
TEXTS = {
    "optimus": "optimus.txt",
    "vocabulary": "vocabulary-parallelism.txt",
    "disttrain": "disttrain.txt",
    "omnibal": "omnibal.txt",
}
# A caption begins a line; a sentence that begins with a reference has no mark behind the number.
_CAPTION = re.compile(r"^(Table|Figure) (\d+)[:.]", re.MULTILINE)

# A number, the ends of a range, or words where none is printed.
Figure = float | tuple[float, float] | str


@dataclass(frozen=True, slots=True)
class Listed:
    """A numbered table or figure. `rows`: printed figures by row; see tables.toml for the rest.

    `data`: whether the project's data folder is needed.
    """

    name: str
    about: str
    rows: Mapping[str, Figure]
    command: str = ""
    reason: str = ""
    cause: str = ""
    data: bool = False
    reasons: Mapping[str, str] = field(default_factory=dict)

    def why_not(self, row: str) -> str:
        """Return why a row has no figure of ours, "" where it should have one."""
        return next((why for begin, why in self.reasons.items() if row.startswith(begin)), "")


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper: its tables with figures, and the names of its drawings, which print none."""

    name: str
    title: str
    year: int
    about: str
    tables: tuple[Listed, ...]
    drawings: tuple[str, ...]

    @property
    def numbered(self) -> set[str]:
        """Return the names of all its tables and figures."""
        return {table.name for table in self.tables} | set(self.drawings)


def read_papers(path: Path = LIST) -> dict[str, Paper]:
    """Return the papers by name. Raises ValueError for a table with neither rows nor a reason."""
    found = {}
    for name, entry in tomllib.loads(path.read_text("utf-8")).items():
        tables = tuple(_table(name, table) for table in entry["tables"])
        found[name] = Paper(
            name, entry["title"], entry["year"], entry["about"], tables, tuple(entry["drawings"])
        )
    return found


def captions(text: str) -> set[str]:
    r"""Return the names of the tables and figures that a paper's text has captions of.

    >>> sorted(captions("Table 1: sizes\nFigure 2. A chart\nFigure 3 shows more\n"))
    ['Figure 2', 'Table 1']
    """
    return {f"{kind} {number}" for kind, number in _CAPTION.findall(text)}


def _table(paper: str, entry: Mapping[str, Any]) -> Listed:
    given = dict(entry)
    rows = dict(_rows(given.pop("rows", {})))
    if bool(rows) == bool(given.get("reason")):
        raise ValueError(f"{paper}, {entry['name']}: give either rows or a reason")
    return Listed(rows=rows, **given)


def _rows(rows: Mapping[str, Any], begin: str = "") -> Iterator[tuple[str, Figure]]:
    for name, value in rows.items():
        full = f"{begin}, {name}" if begin else name
        if isinstance(value, Mapping):
            yield from _rows(value, full)
        else:
            yield full, tuple(value) if isinstance(value, list) else value
