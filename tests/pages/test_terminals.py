"""Tables on terminals of 80 and 160 columns: nothing is cut, whatever is in them."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from counterpoise.tools.cli import main
from counterpoise.tools.console.reporting import fitted, make_table

COMMANDS = (
    ("analyze", "{costs}", "--out", "{out}"),
    ("schedule", "compare", "1f1b", "interleaved", "zbv"),
    ("plan", "job", "--only", "orchestrate", "--model", "mllm-9b", "--gpus", "12",
     "--samples-per-step", "48"),
    ("doctor",),
)  # fmt: skip


@pytest.fixture
def named(tmp_path: Path) -> dict[str, str]:
    rng, path = np.random.default_rng(0), tmp_path / "costs.npz"
    np.savez(path, tiles=rng.integers(0, 9, 600), tokens=rng.integers(9, 4000, 600))
    return {"costs": str(path), "out": str(tmp_path / "out")}


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_no_command_cuts_its_tables(
    words: tuple[str, ...], width: int, named: dict[str, str],
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", str(width))
    with pytest.raises(SystemExit):
        main([each.format(**named) for each in words])
    lines = capfd.readouterr().out.splitlines()
    # what is pasted and paths stay in one line
    drawn = itertools.takewhile(lambda line: not line.startswith("Settings to paste"), lines)
    assert [line for line in drawn if "…" in line or len(line) > width] == []


def test_a_table_that_is_too_wide_becomes_a_list() -> None:
    names = [f"a long heading {number}" for number in range(12)]
    table = make_table("Figures", *names)
    table.add_row(*map(str, range(100, 112)))
    console = Console(width=80)
    with console.capture() as captured:
        console.print(fitted(table, console))
    text = captured.get()
    assert all(name in text for name in names)
    assert "…" not in text
    wide = Console(width=200)
    assert fitted(table, wide) is table
