"""The order of mixtures: never a whole sample off, by cost never more than about one."""

import numpy as np
import pytest

from counterpoise.balancer.planning.mixing.recipe import ALL, FIRST, Begun, Recipe
from counterpoise.balancer.planning.mixing.shares import Floats, spread_evenly


def recipe_of(rng: np.random.Generator, number: int) -> Recipe:
    """Return a random recipe: 2 to 100 sources, weights that change, and each rule of an end."""
    count = int(rng.integers(2, 101 if number % 5 == 0 else 12))
    names = tuple(f"s{each}" for each in range(count))
    sizes = tuple(int(each) for each in rng.integers(1, 300, count))

    def weights() -> Floats:
        return rng.random(count) ** rng.integers(1, 5) + (0.05 if number % 4 else 1e-6)

    schedule = [(0, weights())]
    for _ in range(number % 4):
        schedule.append((schedule[-1][0] + int(rng.integers(1, 200)), weights()))
    kept = [name for name in names if rng.random() < 0.5 or number % 2]
    epoch: int | str = (600, FIRST, ALL, names[0])[number % 4] if kept else ALL
    return Recipe(names, sizes, tuple(schedule), epoch, kept)


@pytest.mark.parametrize("part", range(8))
def test_no_prefix_of_a_mixture_is_a_whole_sample_off(part: int) -> None:
    rng = np.random.default_rng(part)
    for number in range(10):
        recipe = recipe_of(rng, 10 * part + number)
        order, targets = recipe.order(seed=1, epoch=0), recipe._targets()
        assert len(order) == recipe.samples()
        assert len(np.unique(order)) == len(order)
        sources = np.searchsorted(recipe.first_rows, order, side="right") - 1
        had = np.cumsum(sources[:, None] == np.arange(len(recipe.names)), axis=0)
        totals = np.arange(1, len(order) + 1)
        due = np.stack([np.interp(totals, targets.points, row) for row in targets.due.T], axis=1)
        # These add up to the totals, whatever the weights were.
        assert np.allclose(due.sum(axis=1), totals)
        assert np.abs(had - due).max() < 1


def simple(**others: object) -> Recipe:
    given: dict[str, object] = {
        "names": ("a", "b"), "sizes": (30, 50), "schedule": ((0, np.array([3.0, 1.0])),),
        "epoch": 200, "repeats": ("a", "b"),
    }  # fmt: skip
    return Recipe(**{**given, **others})  # type: ignore[arg-type]


def test_constant_weights_are_the_shares_of_every_prefix() -> None:
    order = simple().order(0, 0)
    of_a = np.cumsum(order < simple().first_rows[1])
    assert np.abs(of_a - 0.75 * np.arange(1, 201)).max() < 1


def test_each_pass_has_every_sample_once_in_an_order_of_its_own() -> None:
    recipe = simple()
    rows = recipe.order(0, 0)
    of_a = rows[rows < recipe.first_rows[1]]
    passes = [of_a[begin : begin + 30] % 30 for begin in range(0, 150, 30)]
    assert all(sorted(each.tolist()) == list(range(30)) for each in passes)
    assert len({tuple(each.tolist()) for each in passes}) == 5
    assert (of_a // 30 == np.repeat(range(5), 30)).all()
    later = recipe.order(0, 1)
    assert not (later == rows).all()
    assert (recipe.order(0, 0) == rows).all()
    unshuffled = recipe.order(0, 0, shuffle=False)
    assert (unshuffled[unshuffled < recipe.first_rows[1]] == np.arange(150)).all()


@pytest.mark.parametrize(
    ("epoch", "repeats", "samples", "of_a"),
    [
        (FIRST, ("a", "b"), 40, 30),
        ("b", ("a", "b"), 198, 148),  # b's last is due at 200, and comes a little before
        (ALL, ("a", "b"), 198, 148),
        (ALL, (), 80, 30),
        ("b", ("b",), 80, 30),
    ],
)
def test_epochs_end_by_their_rule(epoch: str, repeats: tuple[str], samples: int, of_a: int) -> None:
    recipe = simple(epoch=epoch, repeats=repeats)
    order = recipe.order(0, 0)
    assert abs(len(order) - samples) <= 2
    assert len(order) == recipe.samples()
    assert abs(int((order < recipe.first_rows[1]).sum()) - of_a) <= 2
    if epoch in (ALL, "b"):
        assert (order >= recipe.first_rows[1]).sum() == 50


def test_weights_change_where_the_schedule_says() -> None:
    schedule = ((0, np.array([1.0, 0.0])), (20, np.array([0.0, 1.0])), (40, np.array([1.0, 1.0])))
    order = simple(schedule=schedule).order(0, 0)
    is_b = order >= simple(schedule=schedule).first_rows[1]
    assert not is_b[:20].any()
    assert is_b[20:40].all()
    assert is_b[40:].sum() == 80


def test_a_source_that_only_ends_elsewhere_is_an_error() -> None:
    with pytest.raises(ValueError, match="has samples left"):
        simple(schedule=((0, np.array([1.0, 0.0])),), repeats=(), epoch=60).order(0, 0)
    with pytest.raises(ValueError, match="never ends"):
        simple(schedule=((0, np.array([1.0, 0.0])),), epoch="b").order(0, 0)


@pytest.mark.parametrize("count", [2, 10, 100])
def test_by_cost_shares_are_kept(count: int) -> None:
    rng = np.random.default_rng(count)
    sizes = tuple(int(each) for each in rng.integers(50, 400, count))
    costs = tuple(
        1 + np.rint(np.exp(rng.normal(rng.uniform(3, 6), 0.8, size))).astype(np.int64)
        for size in sizes
    )
    names, weights = tuple(map(str, range(count))), rng.random(count) + 0.01
    schedule = ((0, weights), (300_000, rng.random(count) + 0.01))
    recipe = Recipe(names, sizes, schedule, 6000, names, costs)
    largest = max(int(each.max()) for each in costs)
    for epoch in range(2):
        order = recipe.order(5, epoch)
        assert len(np.unique(order)) == 6000
        table = np.concatenate([np.tile(c, p) for c, p in zip(costs, recipe.passes, strict=True)])
        sources = np.searchsorted(recipe.first_rows, order, side="right") - 1
        own = np.where(sources[:, None] == np.arange(count), table[order][:, None], 0)
        had, totals = np.cumsum(own, axis=0), np.cumsum(table[order])
        targets = recipe._targets(float(totals[-1]))
        due = np.stack([np.interp(totals, targets.points, row) for row in targets.due.T], axis=1)
        assert np.abs(had - due).max() <= largest
        off = (np.abs(had - due) / totals[:, None])[2000:]
        assert (off <= 0.005 + largest / totals[2000:, None]).all()


def test_what_a_source_has_had_is_counted_over_passes_and_epochs() -> None:
    recipe = simple()
    order = recipe.order(7, 0)
    assert recipe.stands_after(order[:0], 0) == {"a": Begun(0, 0), "b": Begun(0, 0)}
    assert recipe.stands_after(order[:100], 0) == {"a": Begun(2, 15), "b": Begun(0, 25)}
    assert recipe.stands_after(order[:4], 1) == {"a": Begun(5, 3), "b": Begun(1, 1)}


@pytest.mark.parametrize("by_cost", [False, True])
def test_a_source_goes_on_where_it_stood(by_cost: bool) -> None:
    costs = (np.arange(1, 31), np.arange(1, 51)) if by_cost else None
    old = simple(costs=costs)
    whole = old.order(7, 0)
    for taken in (1, 37, 120):
        begun = old.stands_after(whole[:taken], 0)
        new = simple(costs=costs, begun=begun)
        for number in range(2):
            first, last = old.first_rows[number : number + 2]
            rest = [row - first for row in whole[taken:].tolist() if first <= row < last]
            first, last = new.first_rows[number : number + 2]
            size, passed = old.sizes[number], begun[old.names[number]].passes
            now = new.order(7, 0).tolist()
            mine = [row - first + passed * size for row in now if first <= row < last]
            both = min(len(rest), len(mine))
            assert both
            assert mine[:both] == rest[:both]


@pytest.mark.parametrize("seed", range(20))
def test_a_shuffle_by_cost_costs_the_mean_at_every_prefix(seed: int) -> None:
    rng = np.random.default_rng(seed)
    costs = np.rint(np.exp(rng.normal(3, rng.uniform(0, 3), 500))).astype(np.int64) + seed % 2
    order = spread_evenly(costs)
    assert sorted(order.tolist()) == list(range(500))
    off = np.cumsum(costs[order]) - costs.mean() * np.arange(1, 501)
    assert np.abs(off).max() <= costs.max()


def test_samples_that_cost_nothing_come_though_their_source_ends_with_them() -> None:
    costs = (np.array([5, 0, 0]), np.array([2, 2, 0, 2, 0]))
    recipe = simple(sizes=(3, 5), costs=costs, epoch=8, repeats=())
    for shuffle in (False, True):
        assert sorted(recipe.order(0, 0, shuffle).tolist()) == list(range(8))


@pytest.mark.parametrize("by_cost", [False, True])
def test_an_epoch_without_end_in_sight_is_refused(by_cost: bool) -> None:
    costs = (np.ones(30, np.int64), np.ones(50, np.int64)) if by_cost else None
    endless = simple(costs=costs, schedule=((0, np.array([1.0, 1e-9])),), epoch="b")
    with pytest.raises(ValueError, match="an epoch would have 50,000,000,"):
        endless.check()
