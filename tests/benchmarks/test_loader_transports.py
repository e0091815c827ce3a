"""`bench transports`: figures follow from the passes, and a pass counts all processes."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.loading import transports
from benchmarks.loading.systems.cell import Cell


def test_ratios_are_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = {"arena": [30.0, 10.0, 20.0], "inline": [60.0, 40.0, 20.0]}

    def measure(wanted: Sequence[Cell], rounds: int) -> Iterator[tuple[Cell, str, Any]]:
        for cell in wanted:
            for number in range(rounds):
                for name, found in cpu.items():
                    each = transports.BalancedPass(found[number], found[number], 0.0, 0.0)
                    yield cell, name, each

    monkeypatch.setattr(transports, "measure", measure)
    asked = ["--cell", "104x2", "--workers", "1", "--pairs", "3", "--json"]
    result = CliRunner().invoke(transports.command, asked)
    assert result.exit_code == 0, result.output
    (cell,) = json.loads(result.stdout.splitlines()[-1])["cells"]
    assert cell["cpu_ratio"] == {"median": 0.5, "low": 0.25, "high": 1.0}
    assert cell["arena"] == {"trainer": 20.0, "balancer": 0.0, "workers": 0.0}


@pytest.mark.long
@pytest.mark.parametrize("transport", transports.TRANSPORTS)
def test_a_pass_counts_the_time_of_every_process(transport: str) -> None:
    cell = Cell(1_000_000, 8, 1, "touch")
    one = transports.loader_of(transport, cell)
    found = transports._one_pass(one)
    one.close()
    assert min(found.trainer, found.balancer, found.workers) > 0
    assert found.all == found.trainer + found.balancer + found.workers
