"""`make bench NAME=papers`: the papers' figures beside what the planners and simulators compute."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from counterpoise.tools.console.reporting import emit, make_table, progress_console

from . import disttrain, omnibal, optimus, vocabulary
from .listed import Figure, Listed, Paper, read_papers
from .page import markdown, text

# Takes the data folder where the list says so.
Maker = Callable[..., dict[str, float]]
MAKERS: dict[str, dict[str, Maker]] = {
    "optimus": optimus.FIGURES,
    "vocabulary": vocabulary.FIGURES,
    "disttrain": disttrain.FIGURES,
    "omnibal": omnibal.FIGURES,
}
HERE = "make bench NAME=papers"


@click.command("papers", epilog="Example: make bench NAME=papers ARGS='--paper omnibal --json'")
@click.option("--paper", "chosen", multiple=True, type=click.Choice(list(MAKERS)), help="Repeat.")
@click.option(
    "--data",
    envvar="COUNTERPOISE_DATA",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The data folder; without it, rows that need it say so.  [$COUNTERPOISE_DATA]",
)
@click.option("--markdown", "page", type=click.Path(path_type=Path), help="Write the page here.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(chosen: tuple[str, ...], data: Path | None, page: Path | None, as_json: bool) -> None:
    """Print every numbered table and figure of four papers with ours beside it, or why not.

    Ours are simulated or counted, never measured on a GPU.
    """
    papers = {name: one for name, one in read_papers().items() if name in (chosen or MAKERS)}
    rows = [row for name, paper in papers.items() for row in paper_rows(paper, MAKERS[name], data)]
    if page is not None:
        page.write_text(markdown(papers, rows), "utf-8")
        progress_console.print(f"wrote {page}")
    emit({"rows": rows}, as_json, *_tables(papers, rows))


def paper_rows(
    paper: Paper, makers: Mapping[str, Maker], data: Path | None
) -> list[dict[str, Any]]:
    """Return a paper's rows. Raises ValueError where ours lacks a listed row."""
    rows: list[dict[str, Any]] = []
    for table in paper.tables:
        progress_console.print(f"{paper.title}, {table.name}")
        rows += table_rows(paper, table, makers, data)
    return rows


def table_rows(
    paper: Paper, table: Listed, makers: Mapping[str, Maker], data: Path | None
) -> list[dict[str, Any]]:
    """Return a table's rows; a table without figures of ours is one row with the reason."""
    begin = {"paper": paper.title, "table": table.name}
    empty = {"ours": None, "theirs": None, "ratio": None, "command": "", "reason": ""}
    if table.reason:
        return [begin | {"row": ""} | empty | {"reason": table.reason}]
    absent = table.data and data is None
    given = (data,) if table.data else ()
    ours = {} if absent else makers[table.name](*given)
    rows = []
    for name, theirs in table.rows.items():
        row = begin | {"row": name} | empty | {"theirs": theirs}
        if name in ours:
            value = float(ours[name])
            row |= {"ours": value, "ratio": ratio(value, theirs), "command": table.command or HERE}
        elif why := table.why_not(name) or (absent and "Needs the data folder: --data."):
            row |= {"reason": why}
        else:
            raise ValueError(f"{paper.title}, {table.name}: no figure and no reason for {name!r}")
        rows.append(row)
    return rows


def ratio(ours: float, theirs: Figure) -> float | None:
    """Return ours over theirs: over the nearer end of a range, 1 inside it; None over 0 or words.

    >>> ratio(3.0, 2.0), ratio(3.0, (1.0, 4.0)), ratio(6.0, (1.0, 4.0)), ratio(0.0, 0.0)
    (1.5, 1.0, 1.5, None)
    """
    if isinstance(theirs, str):
        return None
    if isinstance(theirs, tuple):
        least, most = theirs
        theirs = min(max(ours, least), most)
        if theirs == ours:
            return 1.0
    return ours / theirs if theirs else None


def _tables(papers: Mapping[str, Paper], rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    return [
        _table(paper, [row for row in rows if row["paper"] == paper.title])
        for paper in papers.values()
    ]


def _table(paper: Paper, rows: Sequence[Mapping[str, Any]]) -> Table:
    shown = make_table(
        f"{paper.title} ({paper.year})", "table", "row", "paper", "ours", "ratio", "why not"
    )
    for row in rows:
        figures = (text(row[key]) for key in ("theirs", "ours", "ratio"))
        shown.add_row(row["table"], row["row"], *figures, row["reason"])
    return shown
