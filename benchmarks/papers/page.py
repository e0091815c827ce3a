"""docs/benchmarks/papers.md: the rows of the bench as a page."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .listed import Figure, Listed, Paper

HEAD = """# The papers' figures, and ours

Written by `make bench NAME=papers ARGS="--data $DATA --markdown docs/benchmarks/papers.md"`, which
takes about a minute; do not edit. Every numbered table and figure of the four papers that
counterpoise builds on: the printed figures, and what our planners and simulators compute for the
same job. Nothing of ours was measured on a GPU; GPU days and MFU are simulated steps. A
ratio is ours over theirs, over
the nearer end of a printed range; {near} of {all} are within a tenth. Where one is not, the line
below the table says why. Years are those of the conferences.
"""

Row = Mapping[str, Any]


def markdown(papers: Mapping[str, Paper], rows: Sequence[Row]) -> str:
    """Return the page."""
    ratios = [row["ratio"] for row in rows if row["ratio"] is not None]
    near = sum(0.9 <= one <= 1.1 for one in ratios)
    parts = [HEAD.replace("{near}", str(near)).replace("{all}", str(len(ratios)))]
    for paper in papers.values():
        own = [row for row in rows if row["paper"] == paper.title]
        parts.append(f"## {paper.title} ({paper.year})\n\n{paper.about}.\n")
        for table in paper.tables:
            mine = [row for row in own if row["table"] == table.name]
            if not table.reason:
                parts.append("\n".join(_section(table, mine)) + "\n")
        parts.append(f"### Without figures of ours\n\n{_reasons(paper, own)}\n")
    return "\n".join(parts)


def _section(table: Listed, rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a table with figures."""
    yield f"### {table.name}: {table.about}\n"
    if table.command:
        yield f"`{table.command}`\n"
    yield "| row | paper | ours | ratio |\n| -- | -- | -- | -- |"
    left = [row for row in rows if row["reason"]]
    for row in rows:
        cells = [row["row"], *(text(row[key]) for key in ("theirs", "ours", "ratio"))]
        if not row["reason"]:
            yield f"| {' | '.join(cells)} |"
    if table.cause:
        yield f"\n{table.cause}"
    for why in dict.fromkeys(row["reason"] for row in left):
        names = ", ".join(
            f"{row['row']} ({text(row['theirs'])})" for row in left if row["reason"] == why
        )
        yield f"\nNot ours: {names}. {why}"


def _reasons(paper: Paper, rows: Sequence[Row]) -> str:
    lines = [f"- {row['table']}: {row['reason']}" for row in rows if not row["row"]]
    lines.append(
        f"- {', '.join(paper.drawings)}: drawings, lists of symbols; they print no figures."
    )
    return "\n".join(lines)


def text(value: Figure | None) -> str:
    """Return a figure with about three digits, a range as least to most, "" for none.

    >>> text(0.0364), text(61.8), text((1.7, 2.2)), text(1234.5), text(0), text(None)
    ('0.036', '61.8', '1.70 to 2.20', '1,234', '0', '')
    """
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, tuple | list):
        return " to ".join(map(text, value))
    digits = next(
        (one for least, one in ((100, ",.0f"), (10, ".1f"), (0.1, ".2f")) if abs(value) >= least),
        ".2g",
    )
    return f"{value:{digits}}"
