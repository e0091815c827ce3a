"""`bench matrix`: its figures follow from the passes, and a pass reads every sample."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.loading import matrix, matrix_report, systems
from benchmarks.loading.systems import cell as cells
from benchmarks.loading.systems import peers
from benchmarks.loading.systems.cell import Cell, parse_cell

RATES: dict[str, tuple[float | str, ...]] = {
    "ours": (30.0, 80.0, 10.0),
    "torch": (10.0, 20.0, 10.0),
    "control": (20.0, 20.0, 5.0),
    "grain": (10.0, 40.0, 20.0),
    "spdl": (15.0, "no shared memory"),
}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes at RATES, where grain and spdl are installed, spdl fails, and torchdata is not."""

    def measure(
        wanted: Sequence[Cell], rounds: int, _: Any, others: Sequence[str]
    ) -> Iterator[tuple[Cell, str, matrix.Measured]]:
        assert others == ["grain", "spdl"]
        for cell in wanted:
            for number in range(rounds):
                for name, found in RATES.items():
                    for rate in found[number : number + 1]:
                        if isinstance(rate, str):
                            yield cell, name, rate
                        else:
                            yield cell, name, matrix_report.MatrixPass(rate, 1.0, 0.5, 2.0)

    def versions(_: Sequence[str]) -> dict[str, str | None]:
        return {"grain": "1.2", "spdl": "3.4", "torchdata": None}

    monkeypatch.setattr(matrix, "measure", measure)
    monkeypatch.setattr(matrix, "versions", versions)


def asked(*more: str) -> str:
    wanted = ["--cell", "104x2", "--workers", "1", "--pairs", "3", *more]
    return CliRunner().invoke(matrix.command, wanted, catch_exceptions=False).stdout


@pytest.mark.usefixtures("measured")
def test_ratios_are_of_passes_of_one_round() -> None:
    cells = json.loads(asked("--json").splitlines()[-1])["cells"]
    assert [(each["sample_bytes"], each["consumer"]) for each in cells] == [
        (104, "touch"),
        (104, "read"),
    ]
    assert cells[0]["ratio"] == {"median": 3.0, "low": 1.0, "high": 4.0}
    assert cells[0]["ratio_of_equals"] == {"median": 1.0, "low": 0.5, "high": 2.0}
    assert cells[0]["torch"]["samples_per_s"] == 10.0
    assert cells[0]["peers"]["grain"] == {
        "ratio": {"median": 2.0, "low": 0.5, "high": 3.0},
        "samples_per_s": 20.0,
        "trainer_us": 1.0,
        "balancer_us": 0.5,
        "all_us": 2.0,
    }


@pytest.mark.usefixtures("measured")
def test_peers_that_are_absent_or_fail_are_named_with_the_reason() -> None:
    found = json.loads(asked("--json").splitlines()[-1])
    assert found["peers"] == {
        "grain": {"version": "1.2", "left_out": None},
        "spdl": {"version": "3.4", "left_out": "no shared memory"},
        "torchdata": {"version": None, "left_out": "not installed"},
    }
    assert [[*each["peers"]] for each in found["cells"]] == [["grain"], ["grain"]]
    table = asked()
    assert "torchdata: not installed" in table
    assert "spdl: no shared memory" in table


def test_versions_are_of_the_peers_that_were_asked_for() -> None:
    assert [*peers.versions()] == [*peers.PEERS]
    assert [*peers.versions(["spdl"])] == ["spdl"]
    with pytest.raises(ValueError, match=r"--peer got dali; there are torchdata, spdl"):
        peers.versions(["dali", "spdl"])


def test_a_peer_that_fails_is_ended_and_one_of_ours_ends_the_run() -> None:
    class Failing:
        closed = False

        def ask(self, _: Any) -> Any:
            raise ValueError("no memory")

        def close(self) -> None:
            self.closed = True

    failing: Any = Failing()
    there = {"grain": failing, "ours": failing}
    assert matrix._ask(there, "grain", "pass") == "no memory"
    assert [*there] == ["ours"]
    assert failing.closed
    with pytest.raises(ValueError, match="no memory"):
        matrix._ask(there, "ours", "pass")


@pytest.fixture
def short_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes of as few batches as there can be."""
    monkeypatch.setattr(cells, "_PASS_BYTES", 1)


@pytest.mark.usefixtures("short_passes")
@pytest.mark.parametrize(("name", "balanced"), [("ours", False), ("ours", True), ("torch", False)])
def test_a_pass_of_each_system_takes_all_batches(name: str, balanced: bool) -> None:
    cell = Cell(80_000, 2, 1, "read", balanced)
    opened = peers.open_system(name, cell)
    found = matrix.one_pass(opened, cell)
    assert found.rate > 0
    assert found.all_us > found.trainer_us + found.balancer_us > 0
    assert found.balancer_us == 0  # no loop on its own machine has one
    opened.close()


@pytest.mark.usefixtures("short_passes")
@pytest.mark.parametrize("name", peers.PEERS)
def test_a_pass_of_each_installed_peer_takes_all_batches(name: str) -> None:
    if peers.versions([name])[name] is None:
        pytest.skip(f"{name} is not installed; `make bench NAME=peers` has it")
    cell = Cell(8_000, 32, 2, "touch")
    opened = peers.open_system(name, cell)
    for _ in range(2):
        batches = [batch.shape for batch in opened]
        assert batches == [(32, 8_000)] * 2 * cell.worker_batches
    found = matrix.one_pass(opened, cell)
    assert found.all_us > found.trainer_us > 0
    opened.close()


def test_every_peer_has_its_module_and_its_version() -> None:
    folder = Path(systems.__path__[0])
    for module in {*peers.PEERS.values(), *peers.OWN.values()}:
        assert "def open_loader(cell: Cell)" in (folder / f"{module}.py").read_text()
    pinned = re.findall(
        r"^([\w-]+)==", Path(__file__).with_name("peers.txt").read_text(), re.MULTILINE
    )
    assert set(pinned) == {*peers.PEERS, "torch"}


def test_workers_have_equal_shares_of_a_pass() -> None:
    cell = Cell(8, 1, 3, "touch")
    assert (cell.batches, cell.worker_batches) == (800, 267)


def test_a_table_without_peers_is_made_too() -> None:
    one = [matrix_report.MatrixPass(1.0, 1.0, 0.0, 2.0)]
    passes = {Cell(104, 2, 1, "read"): dict.fromkeys(peers.OWN, one)}
    found = matrix_report.report(passes, 1, {}, {})
    against_torch, against_peers = matrix_report.tables(found)
    assert (against_torch.row_count, against_peers.row_count) == (1, 1)
    assert against_peers.caption is None


def test_cells_are_parsed() -> None:
    assert parse_cell("150000x32") == (150_000, 32)
    for wrong in ("", "3", "0x1", "axb", "8x-1", "100x2"):
        with pytest.raises(ValueError, match="BYTESxBATCH"):
            parse_cell(wrong)
