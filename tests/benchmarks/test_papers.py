"""`bench papers`: no numbered table of the four papers is missing, and the page has all rows."""

import shlex
from pathlib import Path

import click
import pytest

from benchmarks.__main__ import group as benches
from benchmarks.papers import omnibal, omnibal_job
from benchmarks.papers.command import MAKERS
from benchmarks.papers.listed import TEXTS, captions, read_papers
from counterpoise.tools.cli import group
from tests.docs.pages import page_named

PAPERS = read_papers()


@pytest.mark.parametrize("name", PAPERS)
def test_every_numbered_table_and_figure_of_the_text_is_listed(name: str, data: Path) -> None:
    text = data.parent / "papers" / TEXTS[name]
    if not text.is_file():
        pytest.skip("the papers' texts are not here")
    assert captions(text.read_text()) == PAPERS[name].numbered


@pytest.mark.parametrize("name", PAPERS)
def test_every_listed_table_has_figures_of_ours_or_a_reason(name: str) -> None:
    assert [*MAKERS[name]] == [table.name for table in PAPERS[name].tables if table.rows]
    assert not {table.name for table in PAPERS[name].tables} & {*PAPERS[name].drawings}


def test_the_committed_page_has_every_row_and_names_what_is_off(root: Path) -> None:
    page = page_named("papers").read_text()
    for paper in PAPERS.values():
        part = page.split(f"## {paper.title} (")[1].split("\n## ")[0]
        for table in paper.tables:
            if table.reason:
                assert f"- {table.name}: {table.reason}" in part
                continue
            section = part.split(f"### {table.name}: ")[1].split("\n### ")[0]
            cells = [line.strip("| ").split(" | ") for line in section.splitlines() if "|" in line]
            ours = {row[0]: row[3:] for row in cells[2:]}
            assert ours.keys() == {row for row in table.rows if not table.why_not(row)}, table.name
            off = [float(value[0]) for value in ours.values() if value and value[0]]
            if any(not 0.9 <= value <= 1.1 for value in off):
                assert table.cause, f"{paper.title}, {table.name}"
                assert table.cause in section


def test_omnibals_ablation_is_within_a_tenth(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(omnibal_job, "DRAWN", 384)
    omnibal.whole.cache_clear()
    found = omnibal.whole(data, *omnibal.HEADLINE)
    omnibal.whole.cache_clear()
    table = next(one for one in PAPERS["omnibal"].tables if one.name == "Table 7")
    for name, theirs in table.rows.items():
        assert found[name] == pytest.approx(theirs, rel=0.1), name


@pytest.mark.parametrize("command", sorted({t.command for p in PAPERS.values() for t in p.tables}))
def test_every_command_beside_a_table_is_one(command: str) -> None:
    program, *words = shlex.split(command or "make bench NAME=papers")
    chosen: click.Command = group if program == "counterpoise" else benches
    if program == "make":
        given = dict(word.split("=", 1) for word in words[1:])
        words = [given["NAME"], *shlex.split(given.get("ARGS", "").replace("$DATA", "."))]
    while isinstance(chosen, click.Group):
        found = chosen.get_command(click.Context(chosen), words.pop(0))
        assert found is not None, command
        chosen = found
    chosen.make_context(command, words)
