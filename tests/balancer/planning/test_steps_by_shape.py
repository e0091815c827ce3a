"""One shape a microbatch: random plans, what they hold, and which of them contradict themselves."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counterpoise.balancer import Balance, Images, PlanConfig, Shapes, Window, make_planner
from counterpoise.balancer.planning.problem.config import GlobalBatch

BY_SHAPE = Shapes(bucket_by="shape")
RESOURCES = ("shape", "pixels")


def plan_epoch(
    config: PlanConfig, costs: np.ndarray, epoch: int = 0
) -> tuple[list[GlobalBatch], list[int], int]:
    """All steps of an epoch, the samples over budget, and how many others are in none."""
    planner, batches, over, left_out, start = make_planner(config), [], [], 0, 0
    while start < len(costs):
        rows = costs[start : start + planner.window_samples]
        last = start + len(rows) == len(costs)
        planned = planner.plan(Window(epoch, len(batches), start, rows, last))
        assert planned.consumed > 0
        batches += planned.batches
        over += planned.oversize
        left_out += planned.left_out
        start += planned.consumed
    return batches, over, left_out


def draw_costs(samples: int, shapes: int, seed: int, varies: bool) -> np.ndarray:
    """Samples of shapes that are unlike in number and in work; varies: also within a shape."""
    draw = np.random.default_rng(seed)
    keys = draw.choice(shapes, samples, p=draw.dirichlet(np.full(shapes, 0.5)))
    pixels = draw.integers(1, 40, shapes)[keys]
    return np.stack([keys * 1000, pixels + varies * draw.integers(0, 9, samples)], axis=1)


def cells(batches: list[GlobalBatch]) -> list[list[int]]:
    return [list(m.ordinals) for batch in batches for rank in batch.ranks for m in rank]


@st.composite
def cases(draw: Any) -> tuple[PlanConfig, tuple[Any, ...]]:
    samples = draw(st.integers(1, 3000)), draw(st.integers(1, 40)), draw(st.integers(0, 99))
    ranks = draw(st.integers(1, 64))
    accumulate, size = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    options: dict[str, Any] = draw(
        st.sampled_from([
            {"grouping": "fixed"}, {"grouping": "fixed", "mode": "epoch"},
            {"budgets": {"pixels": 50 * size}}, {"budgets": {"pixels": 50 * size}, "mode": "epoch"},
            {"budgets": {"pixels": 30}}, {"budgets": {"pixels": 30}, "oversize": "refuse"},
            {"budgets": {"pixels": 30}, "oversize": "refuse", "mode": "epoch"},
            {}, {"counts": "equal"}, {"counts": "equal", "work": {"pixels": 3}},
            {"counts": "equal", "budgets": {"pixels": 90}, "oversize": "refuse"},
            {"budgets": {"pixels": 60}, "waits": "step"},
            {"budgets": {"pixels": 60}, "partition": "greedy"},
        ])
    )  # fmt: skip
    fixed = options.get("grouping") == "fixed"
    step = ranks * accumulate * size if fixed else draw(st.integers(1, 600))
    empties = draw(st.booleans())
    balance = Balance(**{"mode": "window", **options}, accumulate=accumulate, shapes=BY_SHAPE)
    config = PlanConfig.from_balance(
        balance, ranks=ranks, resources=RESOURCES, batch_size=size if fixed else None,
        samples_per_step=step if empties else max(step, ranks * accumulate),
        empty_microbatches=empties,
    )  # fmt: skip
    return config, (*samples, draw(st.booleans()))


@given(cases())
@settings(max_examples=60, deadline=None)
def test_each_sample_is_once_in_a_microbatch_of_its_shape(case: Any) -> None:
    check_plan(*case)


@pytest.mark.long
@given(cases())
@settings(max_examples=500, deadline=None)
def test_each_sample_is_once_in_a_microbatch_of_its_shape_in_many_plans(case: Any) -> None:
    check_plan(*case)


def check_plan(config: PlanConfig, drawn: tuple[Any, ...]) -> None:
    costs = draw_costs(*drawn)
    batches, over, left_out = plan_epoch(config, costs)
    groups = cells(batches)
    seen = Counter(ordinal for group in groups for ordinal in group)
    refused = {*over} if config.oversize == "refuse" else set()
    needed = config.ranks * config.first_accumulate
    assert max(seen.values(), default=1) == 1
    assert not {*seen} & refused
    if config.empty_microbatches:
        assert left_out == 0
        assert {*seen} | refused == {*range(len(costs))}
    else:  # too few samples for a step's microbatches are left out, and counted
        missing = len(costs) - len(seen)
        assert missing - len(refused) <= left_out <= missing
        shapes = len({*costs[:, 0].tolist()})
        assert left_out < needed * (config.batch_size or 1) + shapes or not batches
        assert all(groups)
        if config.grouping == "fixed":
            # Nothing stays out if the samples can be a multiple of a step's microbatches.
            counts = Counter(costs[:, 0].tolist()).values()
            least = sum(-(-count // (config.batch_size or 1)) for count in counts)
            assert left_out == 0 or -(-least // needed) * needed > len(costs)
    limit, budget = most_samples(config), config.budgets[1]
    for group in groups:
        assert len({*costs[group, 0].tolist()}) <= 1
        assert limit is None or len(group) <= limit
        assert budget is None or len(group) < 2 or costs[group, 1].sum() <= budget
    assert all(len(rank) == config.first_accumulate for b in batches for rank in b.ranks)
    assert all(len(batch.ranks) == config.ranks for batch in batches)
    assert [batch.step for batch in batches] == list(range(len(batches)))


def most_samples(config: PlanConfig) -> int | None:
    if config.grouping == "fixed":
        return config.batch_size
    whole = config.ranks * config.first_accumulate
    return -(-config.samples_per_step // whole) if config.counts == "equal" else None


def fixed(ranks: int, accumulate: int, size: int, mode: Any, **options: Any) -> PlanConfig:
    balance = Balance("fixed", mode=mode, accumulate=accumulate, shapes=BY_SHAPE, **options)
    return PlanConfig.from_balance(balance, ranks=ranks, resources=RESOURCES, batch_size=size)


def held(batch: GlobalBatch) -> list[int]:
    return sorted(ordinal for group in cells([batch]) for ordinal in group)


def test_an_epoch_has_full_microbatches_but_in_its_last_steps() -> None:
    config, costs = fixed(8, 2, 5, "epoch"), draw_costs(4000, 30, 1, varies=False)
    batches, _, _ = plan_epoch(config, costs)
    sizes = [{len(group) for group in cells([batch])} for batch in batches]
    assert {*map(frozenset, sizes[:-4])} == {frozenset({5})}
    few = [size for size in sizes if size != {5}]
    assert 1 <= len(few) <= 4
    assert sizes[-len(few) :] == few


def test_drop_last_leaves_out_what_fills_no_step() -> None:
    costs = draw_costs(4000, 30, 1, varies=False)
    counts = Counter(costs[:, 0].tolist()).values()
    steps = sum(count // 5 for count in counts) // 16
    config = replace(fixed(8, 2, 5, "epoch"), drop_last=True)
    batches, _, left_out = plan_epoch(config, costs)
    assert [len(held(batch)) for batch in batches] == [80] * steps
    assert left_out == 0  # they were asked to be
    window = replace(fixed(8, 2, 5, "window"), drop_last=True)
    whole = sum(len(held(batch)) for batch in plan_epoch(window, costs)[0])
    assert 4000 - 80 - 30 * 4 < whole <= 4000


@pytest.mark.parametrize("mode", ["window", "epoch"])
@pytest.mark.parametrize("waits", ["microbatch", "step"])
@pytest.mark.parametrize("grouping", ["fixed", "balanced"])
def test_ranks_do_equal_work_though_their_shapes_differ(
    mode: Any, waits: Any, grouping: Any
) -> None:
    costs = draw_costs(30_000, 40, 3, varies=False)
    config = fixed(64, 1, 4, mode, waits=waits)
    if grouping == "fixed":  # as resolutions of about as many pixels each
        costs[:, 1] += 200
    if grouping == "balanced":
        config = PlanConfig.from_balance(
            Balance(budgets={"pixels": 160}, mode=mode, waits=waits, shapes=BY_SHAPE),
            ranks=64, resources=RESOURCES, samples_per_step=400,
        )  # fmt: skip
    batches, _, _ = plan_epoch(config, costs)
    loads = np.array(
        [[costs[list(rank[0].ordinals), 1].sum() for rank in batch.ranks] for batch in batches]
    )
    assert loads.max(axis=1).sum() <= 1.05 * loads.mean(axis=1).sum()
    shapes = [len({*costs[held(batch), 0].tolist()}) for batch in batches]
    assert np.mean(shapes) > 3


@pytest.mark.parametrize("mode", ["window", "epoch"])
def test_a_step_has_the_same_microbatches_for_any_number_of_ranks(mode: Any) -> None:
    costs = draw_costs(9000, 25, 5, varies=True)
    steps = {}
    for ranks in (1, 2, 3, 8, 24):
        config = fixed(ranks, 24 // ranks, 4, mode)
        steps[ranks] = [sorted(cells([batch])) for batch in plan_epoch(config, costs)[0]]
        free = PlanConfig.from_balance(
            Balance(
                budgets={"pixels": 150}, mode=mode, accumulate=24 // ranks, shapes=BY_SHAPE
            ),
            ranks=ranks, resources=RESOURCES, samples_per_step=300,
        )  # fmt: skip
        steps[-ranks] = [sorted(cells([batch])) for batch in plan_epoch(free, costs)[0]]
        assert config.step_digest == fixed(24, 1, 4, mode).step_digest
    assert steps[1] == steps[2] == steps[3] == steps[8] == steps[24]
    assert steps[-1] == steps[-2] == steps[-3] == steps[-8] == steps[-24]


def test_plans_without_a_shape_have_one_digest() -> None:
    config = PlanConfig(4, 64, 2, ("tiles", "tokens"), (None, None))
    assert config.step_digest == config.digest()


def test_a_shape_is_saved_with_its_balance() -> None:
    balance = Balance("fixed", mode="window", shapes=BY_SHAPE)
    assert Balance.from_json(balance.to_json()) == balance
    assert "Shapes(bucket_by='shape')" in repr(balance)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "mode 'exact' puts into a step rarely divide .* mode 'window'"),
        ({"mode": "window", "grouping": "isf", "budgets": {"pixels": 9}}, "grouping 'isf' is for"),
        ({"mode": "window", "work": "padded"}, "work 'padded' is for microbatches of many shapes"),
        ({"mode": "window", "budgets": {"shape": 9}}, "leave shape out of budgets"),
        ({"mode": "window", "work": {"shape": 9}}, "leave shape out of budgets, work"),
        (
            {"mode": "window", "shapes": Shapes({"shape": 8}, bucket_by="shape")},
            "leave shape out of budgets, work, align",
        ),
        (
            {
                "mode": "window", "oversize": "refuse",
                "shapes": Shapes(buckets={"pixels": [8, 64]}, bucket_by="shape"),
            },
            "buckets pad microbatches of many lengths",
        ),
    ],
)  # fmt: skip
def test_contradicting_options_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Balance(**{"shapes": BY_SHAPE, **options})


def test_a_shape_is_named() -> None:
    with pytest.raises(ValueError, match="bucket_by is 7, allowed is the name of a resource"):
        Shapes(bucket_by=7)  # type: ignore[arg-type]


def test_images_of_all_ranks_contradict_one_shape() -> None:
    with pytest.raises(ValueError, match="all_or_none is for microbatches of many shapes"):
        Balance(mode="window", counts="equal", shapes=BY_SHAPE, images=Images(all_or_none="pixels"))


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        (("pixels",), "bucket_by is 'shape', but samples cost pixels: let cost= or probe"),
        (("shape",), "which is no work, and samples cost nothing else"),
        (("shape", "label_tokens"), "which is no work, and samples cost nothing else"),
    ],
)
def test_samples_must_have_a_shape_and_work(resources: Any, message: str) -> None:
    balance = Balance("fixed", mode="window", shapes=BY_SHAPE)
    with pytest.raises(ValueError, match=message):
        PlanConfig.from_balance(balance, ranks=2, resources=resources, batch_size=4)
