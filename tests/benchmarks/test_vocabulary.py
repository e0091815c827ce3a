"""`bench vocabulary`: its report has the promised shape, its golden part agrees with measurements.

Pass times in, utilisation, order of methods and memory out (issue 47's fourth acceptance).
"""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.baselines.vocabulary_measurements import MeasuredRun, read_runs
from benchmarks.vocabulary.golden import golden, measured_program, same_order
from benchmarks.vocabulary.simulated import command
from counterpoise.sched import check

METHODS = ("base", "redis", "alg1", "alg2")
WORDS = ("32k", "64k", "128k", "256k")


@pytest.fixture(scope="module")
def report(data: Path) -> dict[str, Any]:
    """What the bench finds from the authors' files."""
    folder = data / "golden"
    if not folder.is_dir():
        pytest.skip("no golden measurements here")
    return golden(folder)


def test_simulated_utilisation_is_that_of_the_run_that_was_timed(report: dict[str, Any]) -> None:
    assert report["most_points_off"] <= 1


def test_methods_are_in_the_reported_order(report: dict[str, Any]) -> None:
    assert report["ordered_cells"] >= 7


def test_peak_memory_is_the_reported_one(report: dict[str, Any]) -> None:
    assert report["memory_within"] >= 38
    # The one outlier has more at 2,048 tokens than at 4,096, and a third of the speed.
    assert set(report["memory_missed"]) == {"base 2048 256k"}


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("method", METHODS)
def test_simulated_utilisation_is_the_reported_one(
    report: dict[str, Any], words: str, method: str
) -> None:
    cell = report["cells"]["2048"][words][method]
    if (words, method) == ("256k", "base"):
        assert cell["measured"] < 0.7 * cell["simulated"]  # the same outlier
    else:
        assert cell["simulated"] == pytest.approx(cell["measured"], rel=0.07)


def test_measured_programs_are_sound(data: Path) -> None:
    for run in read_runs(data / "golden"):
        if (run.tokens, run.words) == (2048, 32000):
            check(measured_program(run)[0])


def test_order_with_ties() -> None:
    assert same_order([(1.0, 3.0), (1.2, 2.95), (0.5, 1.0)])
    assert not same_order([(1.0, 3.0), (1.2, 2.8)])


def test_utilisation_is_flops_over_time() -> None:
    run = MeasuredRun("base", 2048, 256000, 128, 32, 3072, (1,) * 8, (2,) * 8, (0,) * 8, 11722.2)
    assert run.utilisation(11_722_200_000) == pytest.approx(80.72 / 312 * 100, rel=1e-3)


@pytest.mark.slow
@pytest.mark.long
def test_the_report_has_the_promised_keys() -> None:
    result = CliRunner().invoke(command, ["--json"], catch_exceptions=False)
    report = json.loads(result.stdout.splitlines()[-1])
    assert set(report) == {"peak_microbatches", "bubble", "speedup", "golden"}
    assert report["golden"] == {}
    for ranks in (4, 8, 16, 32):
        peaks = report["peak_microbatches"][str(ranks)]
        assert peaks == {"base": ranks, "alg1": ranks + 2, "alg2": ranks + 1}
        assert set(report["bubble"][str(ranks)]) == {"base", "alg1", "alg2"}
    cells = [
        report["speedup"][model][tokens][words]
        for model in ("4B", "10B", "21B")
        for tokens in ("2048", "4096")
        for words in WORDS
    ]
    assert len(cells) == 24
    assert all(cell["alg2_over_base"] > cell["redis_over_base"] >= 1 for cell in cells)


def test_a_folder_without_measurements_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="golden"):
        list(read_runs(tmp_path / "golden"))
