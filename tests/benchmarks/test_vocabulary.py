"""The simulator against the measurements of the paper on vocabulary parallelism.

Pass times in; utilisation, order of methods and memory out.
"""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.baselines.vocabulary_measurements import read_runs
from benchmarks.vocabulary.golden import golden, measured_program
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
