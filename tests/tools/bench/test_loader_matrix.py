"""`bench loader --matrix`: its figures follow from the passes, and a pass reads every sample."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from click.testing import CliRunner

from counterpoise.tools.bench.loading import loader, matrix


def test_ratios_are_of_passes_of_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"ours": (30.0, 80.0, 10.0), "torch": (10.0, 20.0, 10.0), "control": (20.0, 20.0, 5.0)}

    def measure(wanted: Sequence[Any], rounds: int, _: Any) -> Iterator[Any]:
        for cell in wanted:
            for number in range(rounds):
                for name, found in rates.items():
                    yield cell, name, matrix.MatrixPass(found[number], 1.0, 0.5, 2.0)

    monkeypatch.setattr(matrix, "measure", measure)
    asked = ["--matrix", "--cell", "104x2", "--workers", "1", "--pairs", "3", "--json"]
    done = CliRunner().invoke(loader.command, asked, catch_exceptions=False)
    cells = json.loads(done.stdout.splitlines()[-1])["cells"]
    assert [(each["sample_bytes"], each["consumer"]) for each in cells] == [
        (104, "touch"),
        (104, "read"),
    ]
    assert cells[0]["ratio"] == {"median": 3.0, "low": 1.0, "high": 4.0}
    assert cells[0]["ratio_of_equals"] == {"median": 1.0, "low": 0.5, "high": 2.0}
    assert cells[0]["torch"]["samples_per_s"] == 10.0


def test_a_pass_of_each_system_takes_all_batches() -> None:
    for name, balanced in (("ours", False), ("ours", True), ("torch", False)):
        cell = matrix.Cell(8_000_000, 2, 1, "read", balanced)
        loader = matrix.loader_of(name, cell)
        if balanced:
            next(iter(loader))
        found = matrix._one_pass(loader, cell)
        assert found.rate > 0
        assert found.all_us > found.trainer_us + found.balancer_us > 0
        assert (found.balancer_us > 0) is balanced
        matrix._end(loader)


def test_cells_are_parsed() -> None:
    assert matrix.parse_cell("150000x32") == (150_000, 32)
    for wrong in ("", "3", "0x1", "axb", "8x-1", "100x2"):
        with pytest.raises(ValueError, match="BYTESxBATCH"):
            matrix.parse_cell(wrong)
