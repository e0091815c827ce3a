"""Plans that order microbatches for the pipeline whose costs their configuration holds."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoise.balancer import PipelineOrder
from counterpoise.balancer.planning.kernels.arrays import Int64
from counterpoise.balancer.planning.ordering.evaluator import PipelineEvaluator
from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.balance import Balance
from counterpoise.balancer.planning.problem.config import GlobalBatch, PlanConfig, Window

RESOURCES = ("tiles", "tokens", "label_tokens")
# The first stage sees the tiles, the others the tokens and the pairs that attention looks at.
FORWARD: list[dict[str, Any]] = [
    {"per_thousand": {"tiles": 3_000_000}},
    {"per_thousand": {"tokens": 9000}},
    {"fixed": 50, "per_thousand": {"token_pairs": 200}},
    {"per_thousand": {"tokens": 4000}},
]
PROFILE: dict[str, Any] = {"placement": [0, 1, 2, 3], "passes": {"F": FORWARD}, "p2p_ns": 7}


def write(folder: Path, **changes: Any) -> str:
    path = folder / "costs.json"
    path.write_text(json.dumps({**PROFILE, **changes}))
    return str(path)


def config_of(path: str, ordering: Any = "two_opt", **options: Any) -> PlanConfig:
    balance = Balance(
        pipeline=None if ordering == "given" else PipelineOrder(path, ordering),
        accumulate=8,
        samples_per_step=64,
        **options,
    )
    return PlanConfig.from_balance(balance, ranks=2, resources=RESOURCES, samples_per_step=64)


def draw_costs(seed: int) -> Int64:
    draw = np.random.default_rng(seed)
    tokens = np.exp(draw.normal(5, 1, 64)).astype(np.int64) + 1
    return np.column_stack([draw.integers(0, 13, 64) ** 2 // 8, tokens, tokens // 2])


def plan(config: PlanConfig, costs: Int64) -> GlobalBatch:
    (batch,) = make_planner(config).plan(Window(0, 3, 192, costs, False)).batches
    return batch


def plan_unordered(config: PlanConfig, costs: Int64) -> GlobalBatch:
    """Return the step before anything was ordered."""
    planner = make_planner(replace(config, pipeline=""), lambda _, assigned: assigned)
    (batch,) = planner.plan(Window(0, 3, 192, costs, False)).batches
    return batch


def makespan(batch: GlobalBatch, costs: Int64) -> int:
    """Return the time of the slowest rank's pipeline, computed without the plan's own functions."""

    def time(rank: tuple[Any, ...]) -> int:
        groups = [costs[np.array(one.ordinals) - 192] for one in rank]
        tiles, tokens = ([int(g[:, k].sum()) for g in groups] for k in (0, 1))
        pairs = [int((g[:, 1] ** 2).sum()) for g in groups]
        rows = [[3000 * t for t in tiles], [9 * t for t in tokens]]
        rows += [[50 + p * 200 // 1000 for p in pairs], [4 * t for t in tokens]]
        forward = np.array(rows, dtype=np.int64)
        pipeline = PipelineEvaluator.one_forward_one_backward(4, forward)
        return pipeline(np.arange(len(rank)))

    return max(map(time, batch.ranks))


def test_an_ordered_step_has_the_same_microbatches_and_is_shorter(tmp_path: Path) -> None:
    ordered = config_of(write(tmp_path))
    ratios = []
    for seed in range(12):
        costs = draw_costs(seed)
        ours, theirs = plan(ordered, costs), plan_unordered(ordered, costs)
        assert {m for rank in ours.ranks for m in rank} == {m for r in theirs.ranks for m in r}
        assert [len(rank) for rank in ours.ranks] == [8, 8]
        ratios.append(makespan(ours, costs) / makespan(theirs, costs))
    assert max(ratios) <= 1
    assert np.mean(ratios) <= 0.98


def test_the_plan_s_digest_follows_the_profile_s_costs_not_its_path(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    here, there = config_of(write(tmp_path)), config_of(write(tmp_path / "other"))
    assert here.digest() == there.digest()
    slower = [{"per_thousand": {"tiles": 3_000_001}}, *FORWARD[1:]]
    assert config_of(write(tmp_path, passes={"F": slower})).digest() != here.digest()
    # Ledgers of loaders that order nothing go on.
    assert config_of("", "given").digest() == replace(config_of("", "given"), pipeline="").digest()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"placement": [1, 0]}, "'1f1b' has one stage on each rank"),
        ({"placement": [0, 1, 1, 0]}, "'interleaved' has several stages on each rank, in rounds"),
        ({"passes": {"B": FORWARD}}, "no costs of F"),
        ({"passes": {"F": FORWARD[:3]}}, "F: got 3 costs; give all 4 stages', or one"),
        ({"passes": {"F": [{"slow": 1}]}}, "unknown field `slow`"),
        ({"passes": {"F": [{"points": {"tokens": [[3, 1]]}}]}}, "two or more"),
    ],
)
def test_profiles_that_do_not_fit_are_refused_by_the_file_s_name(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        config_of(write(tmp_path, **changes))


def test_a_missing_file_and_costs_that_samples_do_not_have_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"pipeline names the cost profile .*gone\.json"):
        config_of(str(tmp_path / "gone.json"))
    frames = {"F": [{"per_thousand": {"frames": 1}}]}
    config = config_of(write(tmp_path, passes=frames))
    with pytest.raises(ValueError, match="counts frames, but samples cost tiles, tokens"):
        make_planner(config)


def test_interleaved_stages_are_ordered_too(tmp_path: Path) -> None:
    path = write(tmp_path, placement=[0, 1, 0, 1])
    balance = Balance(pipeline=path, accumulate=8, samples_per_step=64)
    ordered = PlanConfig.from_balance(balance, ranks=2, resources=RESOURCES, samples_per_step=64)
    ours, theirs = plan(ordered, draw_costs(1)), plan_unordered(ordered, draw_costs(1))
    assert ours != theirs
    assert {m for rank in ours.ranks for m in rank} == {m for r in theirs.ranks for m in r}
