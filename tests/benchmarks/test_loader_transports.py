"""`make bench NAME=transports`: figures follow from the passes, and a pass counts all processes."""

import json

import pytest
from click.testing import CliRunner

from benchmarks.loading import transports


def test_figures_are_medians_of_the_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = iter([3.0, 1.0, 2.0] * len(transports.WAYS) * len(transports.CELLS))

    def one_pass(*_: object) -> dict[str, float]:
        return {"samples_per_s": 10 * (found := next(taken)), "cpu_us": found}

    monkeypatch.setattr(transports, "_one_pass", one_pass)
    result = CliRunner().invoke(transports.command, ["--pairs", "3", "--json"])
    assert result.exit_code == 0, result.output
    cells = json.loads(result.stdout.splitlines()[-1])["cells"]
    assert [cell["bytes"] for cell in cells] == [nbytes for nbytes, _ in transports.CELLS]
    assert all(set(transports.WAYS) < set(cell) for cell in cells)
    found = [cell[way] for cell in cells for way in transports.WAYS]
    assert all(each["samples_per_s"] == 10 * each["cpu_us"] for each in found)


@pytest.mark.long
@pytest.mark.parametrize("way", transports.WAYS)
def test_a_pass_counts_what_all_processes_take(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "MOST_SAMPLES", 640)
    found = transports._one_pass(way, 100_000, 8, 1)
    assert min(found.values()) > 0
