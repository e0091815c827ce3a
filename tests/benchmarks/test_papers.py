"""`bench papers`: no numbered table of the four papers is missing, and the page has all rows."""

import json
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks.__main__ import group as benches
from benchmarks.papers import command as bench
from benchmarks.papers import omnibal, omnibal_job
from benchmarks.papers.command import MAKERS, ratio, table_rows
from benchmarks.papers.listed import TEXTS, Figure, Listed, Paper, captions, read_papers
from benchmarks.papers.page import markdown
from counterpoise.tools.cli import group
from tests.docs.pages import page_named

PAPERS = read_papers()
A_ROWS: dict[str, Figure] = {"fast": 2.0, "slow": (1.0, 3.0), "other": 5.0}
A_TABLE = Listed("Table 1", "", A_ROWS, reasons={"o": "no"})
A_PAPER = Paper("one", "One", 2024, "", (A_TABLE,), ())


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


def test_a_table_without_rows_or_reason_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tables.toml"
    path.write_text('[one]\ntitle = "One"\nyear = 1\nabout = ""\ndrawings = []\n'
                    '[[one.tables]]\nname = "Table 1"\nabout = ""\n')  # fmt: skip
    with pytest.raises(ValueError, match="one, Table 1: give either rows or a reason"):
        read_papers(path)


def test_rows_have_ours_theirs_and_their_ratio_or_why_not() -> None:
    made = {"Table 1": lambda: {"fast": 3.0, "slow": 4.0, "beside": 0.0}}
    rows = table_rows(A_PAPER, A_TABLE, made, None)
    assert [row["ratio"] for row in rows] == [1.5, pytest.approx(4 / 3), None]
    assert [row["reason"] for row in rows] == ["", "", "no"]
    with pytest.raises(ValueError, match="no figure and no reason for 'slow'"):
        table_rows(A_PAPER, A_TABLE, {"Table 1": lambda: {"fast": 3.0}}, None)


def test_a_ratio_is_to_the_nearer_end_of_a_range() -> None:
    assert [ratio(x, (2.0, 4.0)) for x in (1.0, 3.0, 5.0)] == [0.5, 1.0, 1.25]
    assert ratio(1.0, "not printed") is None


def test_without_the_data_folder_its_rows_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = PAPERS["omnibal"].tables
    made = {one.name: lambda one=one: dict.fromkeys(one.rows, 1.0) for one in tables}
    monkeypatch.delenv("COUNTERPOISE_DATA", raising=False)
    monkeypatch.setitem(MAKERS, "omnibal", made)
    result = CliRunner().invoke(bench.command, ["--paper", "omnibal", "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout.splitlines()[-1])["rows"]
    assert {row["table"] for row in rows} == {table.name for table in tables}
    without = {row["table"] for row in rows if row["reason"].startswith("Needs the data folder")}
    assert without == {table.name for table in tables if table.data}


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


def test_a_page_has_rows_reasons_and_causes() -> None:
    rows = table_rows(A_PAPER, A_TABLE, {"Table 1": lambda: {"fast": 3.0, "slow": 2.0}}, None)
    page = markdown({"one": A_PAPER}, rows)
    assert "| fast | 2.00 | 3.00 | 1.50 |" in page
    assert "| slow | 1.00 to 3.00 | 2.00 | 1.00 |" in page
    assert "Not ours: other (5.00). no" in page


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
