"""Reads the table of uses in docs/reference/uses.md, which says what to expect of each."""

from dataclasses import dataclass

from tests.docs.pages import page_named
from tests.loader.uses.kinds import Outcome

PAGE = page_named("uses")
HEADER = ["use", "torch", "plain", "balanced"]


@dataclass(frozen=True, slots=True)
class Row:
    """A use, and what the page says that each of the three loaders does."""

    use: str
    torch: str
    plain: str
    balanced: str


def read_rows() -> list[Row]:
    """Return the rows of the page's tables of uses, in order."""
    rows, inside = [], False
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells == HEADER:
            inside = True
        elif inside and not set(line) <= set("|- "):
            rows.append(Row(*cells))
    return rows


def is_told(cell: str, found: Outcome, theirs: Outcome) -> bool:
    """Return whether a cell describes an outcome, where torch's is `theirs`.

    "works": it ended without an error. "same": value or error is torch's. Anything else is an
    error's type and the beginning of its text, in backticks.
    """
    if cell == "works":
        return not found.error
    if cell == "same":
        return found == theirs
    said = cell.strip("`")
    return len(said) > len("ValueError: ") and found.error.startswith(said)
