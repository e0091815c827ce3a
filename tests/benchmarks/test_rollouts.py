"""The bench of rollouts: how it calls verl, and what its bars say."""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.baselines.rollout_rules import deal_as_openrlhf
from benchmarks.baselines.verl_functions import PeerError, VerlProcess
from benchmarks.planning.rollout_cases import parse_cell, weigh
from benchmarks.planning.rollout_report import judge
from benchmarks.planning.rollouts import figure_deal, figure_rows, measure_cells

# What the bench calls of verl: cuts in order, and raises as verl does.
STAND_IN = """
from types import SimpleNamespace

print("a line that is no answer")
tu = SimpleNamespace(index_select_tensor_dict=lambda batch, rows: batch[rows])

def get_seqlen_balanced_partitions(seqlen_list, k_partitions, equal_size):
    assert not equal_size or len(seqlen_list) % k_partitions == 0, "it does not divide"
    edges = [len(seqlen_list) * k // k_partitions for k in range(k_partitions + 1)]
    return [list(range(a, b)) for a, b in zip(edges, edges[1:])]

def rearrange_micro_batches(batch, max_token_len, min_num_micro_batch=None):
    lengths = batch["input_ids"].offsets().diff().tolist()
    number = max(min_num_micro_batch or 1, -(-sum(lengths) // max_token_len))
    parts = get_seqlen_balanced_partitions(lengths, number, False)
    return [tu.index_select_tensor_dict(batch, part) for part in parts], parts
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package of verl's name."""
    folder = tmp_path_factory.mktemp("verl")
    (folder / "verl" / "utils").mkdir(parents=True)
    (folder / "verl" / "utils" / "seqlen_balancing.py").write_text(STAND_IN)
    (folder / "verl-0.0.dist-info").mkdir()
    (folder / "verl-0.0.dist-info" / "METADATA").write_text("Name: verl\nVersion: 0.0\n")
    return folder


@pytest.mark.slow
def test_verl_is_called_in_its_own_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(folder))
    with VerlProcess(sys.executable) as verl:
        assert verl.version == "0.0"
        parts, seconds = verl.partition([5, 1, 1, 1], 2, equal=True)
        assert parts == [[0, 1], [2, 3]]
        assert seconds >= 0
        with pytest.raises(PeerError, match="AssertionError: it does not divide"):
            verl.partition([5, 1, 1], 2, equal=True)
        # one rank needs three microbatches, so the other gets three
        rows, alone, _ = verl.rearrange([[4, 4, 4], [1, 1, 1]], budget=4)
        assert rows == [[[0], [1], [2]]] * 2
        assert alone == [1, 3]
        report = measure_cells([parse_cell("66x4"), parse_cell("64x4x8192")], verl, 1, 0)
    deal = report["deals"][0]["contenders"]
    assert deal["verl"] == {"error": "AssertionError: it does not divide"}
    cut = report["microbatches"][0]
    assert cut["contenders"]["verl"]["missing"] == 0
    assert math.isclose(
        cut["contenders"]["ours, equal"]["cpu_over_verl"]["median"],
        cut["contenders"]["ours, equal"]["cpu_ms"] / cut["contenders"]["verl"]["cpu_ms"],
    )
    waited = next(bar for bar in report["bars"] if bar["bar"] == "work waited for over verl's")
    assert waited["cells"] == 4


def test_an_interpreter_without_verl_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "verl.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"cannot import verl \(ImportError: not here\); install"):
        VerlProcess(sys.executable)


def test_figures_count_what_is_missing_and_over_the_budget() -> None:
    lengths = np.array([4, 2, 2, 3])
    work = weigh(lengths)
    figures = figure_deal([[0], [1, 1]], work, [work[0] / 2])
    assert (figures["missing"], figures["twice"], figures["counts"]) == (2, 1, [1, 2])
    assert figures["max_over_bound"] == pytest.approx(2)
    figures = figure_rows([[[0], [1]], [[2, 3], []]], lengths, budget=4)
    assert figures["over_budget"] == 1
    assert figures["largest"] == 5
    waited = max(work[0], work[2] + work[3]) + work[1]
    assert figures["waited_over_mean"] == pytest.approx(2 * waited / work.sum())


def row_of(cell: str, counts: str, ours: dict[str, Any], verl: dict[str, Any]) -> dict[str, Any]:
    covered = {"missing": 0, "twice": 0}
    contenders = {"ours": covered | ours, "verl": covered | verl}
    return {"lengths": "tail", "cell": cell, "counts": counts, "contenders": contenders}


def test_a_bar_names_the_cells_above_it() -> None:
    deals = [
        row_of("8 x 4", "equal", {"max_over_mean": 1.0}, {"max_over_mean": 1.2}),
        row_of("9 x 4", "free", {"max_over_mean": 1.01, "missing": 1}, {"max_over_mean": 1.0}),
        row_of("7 x 4", "equal", {"max_over_mean": 1.5}, {"error": "it does not divide"}),
    ]
    bars = {bar["bar"]: bar for bar in judge({"deals": deals, "microbatches": []})}
    work = bars["slowest rank's work over verl's"]
    assert (work["worst"], work["cells"], work["above"]) == (1.01, 2, ["tail 9 x 4 free"])
    assert bars["rollouts of ours missing or twice"]["above"] == ["tail 9 x 4 free"]
    assert bars["work waited for over verl's"]["worst"] is None


def test_time_bars_take_the_median_of_their_cell() -> None:
    times = {"cpu_over_verl": {"median": 1.6}, "cpu_ms": 3.0, "max_over_mean": 1.0}
    deals = [
        row_of("4,096 x 64", "equal", times, {"max_over_mean": 1.0}),
        row_of("262,144 x 1,024", "equal", {"cpu_ms": 2.0}, {"error": "no"}),
        row_of("262,144 x 1,024", "free", {"cpu_ms": 5.0}, {"error": "no"}),
    ]
    bars = {bar["bar"]: bar for bar in judge({"deals": deals, "microbatches": []})}
    assert bars["CPU time over verl's, 4,096 x 64, equal"]["above"] == ["tail 4,096 x 64 equal"]
    assert bars["CPU time of free over equal counts, 262,144 x 1,024"]["worst"] == 2.5


@pytest.mark.parametrize("items", [1, 3, 8, 11, 12])
def test_openrlhfs_rule_deals_every_rollout_once(items: int) -> None:
    parts = deal_as_openrlhf(np.arange(items) + 1, ranks=4)
    assert sorted(item for part in parts for item in part) == list(range(items))


def test_a_cell_is_spelt_with_x() -> None:
    with pytest.raises(ValueError, match="give ROLLOUTSxRANKS or ROLLOUTSxRANKSxBUDGET"):
        parse_cell("4096")
