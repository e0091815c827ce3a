"""Figures of the report, recomputed from the raw tars by other means: decoded, in plain Python."""

import json
import tarfile
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch

from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.config import PlanConfig, Window
from counterpoise.tools.cli import main
from counterpoise.workers import SampleError, TarDataset, VisionLanguage

RANKS, COUNT, ACCUMULATE, TILE = 4, 4, 2, 307
BUDGETS = {"tiles": 40, "tokens": 4000}
SIZES: dict[str, Any] = {"tile_size": 32, "max_tiles": 6, "tokens_per_tile": 4, "max_tokens": 2000}
Cost = tuple[int, int]
small = VisionLanguage(**SIZES)


@pytest.fixture(scope="module")
def shards(data: Path) -> list[str]:
    return [str(path) for path in sorted((data / "shards").glob("*.tar"))[:2]]


@pytest.fixture(scope="module")
def decoded(shards: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[Cost]:
    """(tiles, tokens) of every sample, counted in the arrays that decoding gives."""
    dataset = TarDataset(shards, small, cache=tmp_path_factory.mktemp("cache"))
    found = []
    for index in range(len(dataset)):
        with suppress(SampleError):
            one = dataset[index]
            found.append((len(one["pixel_values"]), len(one["input_ids"])))
    return found


@pytest.fixture(scope="module")
def report(shards: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("analysis")
    words = [
        "--transform", f"{__name__}:small", "--ranks", str(RANKS), "--accumulate", str(ACCUMULATE),
        "--batch-size", str(COUNT),
    ]  # fmt: skip
    words += [w for name, value in BUDGETS.items() for w in ("--budget", f"{name}={value}")]
    words += ["--out", str(out), "--cache", str(out / "cache"), "--workers", "1"]
    with pytest.raises(SystemExit) as end:
        main(["analyze", *shards, *words])
    assert end.value.code == 0
    found: dict[str, Any] = json.loads((out / "report.json").read_text())
    return found


def shuffled(count: int) -> list[int]:
    return torch.randperm(count, generator=torch.Generator().manual_seed(0)).tolist()


def waiting(rows: list[list[Cost]]) -> float:
    """Rows of (encoder, llm) of the ranks side by side."""
    work = sum(a + b for row in rows for a, b in row) / RANKS
    time = sum(max(a for a, _ in row) + max(b for _, b in row) for row in rows)
    return 1 - work / time


def test_counts_are_those_of_the_tars(
    report: dict[str, Any], decoded: list[Cost], shards: list[str]
) -> None:
    count = 0
    for path in shards:
        with tarfile.open(path) as tar:
            count += len({member.name.split(".")[0] for member in tar})
    assert report["samples"] == count
    assert report["unreadable"] == count - len(decoded) > 0
    assert report["duplicate_keys"] == 0
    assert sum(one["samples"] for one in report["sources"]) == count
    assert sum(one["fine"] + one["over_budget"] for one in report["sources"]) == len(decoded)


def test_quantiles_are_those_of_the_decoded_arrays(
    report: dict[str, Any], decoded: list[Cost]
) -> None:
    for column, name in enumerate(("tiles", "tokens")):
        values = sorted(cost[column] for cost in decoded)
        found = report["resources"][name]
        assert found["max"] == values[-1]
        assert found["mean"] == pytest.approx(fmean(values))
        for quantile, share in (("p50", 50), ("p90", 90), ("p99", 99)):
            assert found[quantile] == values[-(-len(values) * share // 100) - 1]


def test_waiting_of_random_is_that_of_padded_batches(
    report: dict[str, Any], decoded: list[Cost]
) -> None:
    order = shuffled(len(decoded))
    step = RANKS * ACCUMULATE * COUNT
    whole = order[: len(order) // step * step]
    groups = [[decoded[k] for k in whole[at : at + COUNT]] for at in range(0, len(whole), COUNT)]
    work = [(sum(t for t, _ in g) * TILE, max(n for _, n in g) * COUNT) for g in groups]
    rows = [work[at : at + RANKS] for at in range(0, len(work), RANKS)]
    assert report["forecast"]["waited"] == pytest.approx(waiting(rows))


def test_waiting_of_balanced_is_that_of_the_loaders_plan(
    report: dict[str, Any], decoded: list[Cost]
) -> None:
    order, step = shuffled(len(decoded)), RANKS * ACCUMULATE * COUNT
    costs = np.array(decoded, np.int64)[order]
    config = PlanConfig(RANKS, step, "auto", ("tiles", "tokens"), tuple(BUDGETS.values()))
    planner, rows = make_planner(config), list[list[Cost]]()
    for number in range(len(order) // step):
        window = Window(0, number, number * step, costs[number * step : (number + 1) * step], False)
        for batch in planner.plan(window).batches:
            for side in zip(*batch.ranks, strict=True):
                held = [[decoded[order[k]] for k in microbatch.ordinals] for microbatch in side]
                rows.append([(sum(t for t, _ in g) * TILE, sum(n for _, n in g)) for g in held])
    assert report["forecast"]["waiting"] == pytest.approx(waiting(rows))


def test_the_gain_is_what_a_step_is_shorter(report: dict[str, Any]) -> None:
    told = report["forecast"]
    works = (1 - told["waiting"]) * (1 - told["padding"])
    works_now = (1 - told["waited"]) * (1 - told["padding_random"])
    assert told["time"] == pytest.approx(works_now / works, rel=0.02)  # the last step is not whole
    assert report["gain"] == 1 - told["time"]


def test_the_heaviest_samples_are_the_heaviest(report: dict[str, Any], decoded: list[Cost]) -> None:
    work = sorted((tiles * TILE + tokens for tiles, tokens in decoded), reverse=True)
    found = [one["tiles"] * TILE + one["tokens"] for one in report["heaviest"]]
    assert found == work[:20]


def test_over_budget_are_those_over_a_budget(report: dict[str, Any], decoded: list[Cost]) -> None:
    over = [c for c in decoded if c[0] > BUDGETS["tiles"] or c[1] > BUDGETS["tokens"]]
    assert report["over_budget"] == len(over)
