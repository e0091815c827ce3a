"""Epochs end as docs/guides/mixtures.md says, by samples, tokens and tiles."""

from typing import Any

import numpy as np
import pytest

import counterpoise as cp
from counterpoise.balancer.planning.mixing.recipe import ALL, FIRST, Recipe
from counterpoise.workers import PlainSource

SIZES = (1, 2, 3, 7, 20, 60)
WEIGHTS = (0.3, 0.5, 1, 2)
CASES = 2000


def costs_of(rng: np.random.Generator, count: int) -> np.ndarray:
    """Return costs of samples, of one of six kinds, not all of them 0."""
    drawn = (
        rng.integers(1, 61, count),
        np.rint(np.exp(rng.normal(4, 1, count))) + 1,
        rng.choice([1, 100], count),
        np.full(count, rng.integers(1, 9)),
        rng.integers(0, 3, count),
        np.sort(rng.integers(1, 500, count)),
    )[rng.integers(6)].astype(np.int64)
    drawn[rng.integers(count)] += not drawn.any()
    return drawn


def mixture_of(number: int) -> tuple[cp.Mixture, list[np.ndarray]]:
    """Return a random mixture that a source ends, and what its samples cost."""
    rng = np.random.default_rng(number)
    by = ("samples", "tokens", "tiles")[number % 3]
    sizes = rng.choice(SIZES, rng.integers(1, 6)).tolist()
    names = tuple("abcde"[: len(sizes)])
    tables = [costs_of(rng, size) for size in sizes]
    sources = {
        name: (PlainSource([0] * len(table), cost={by: table.tolist()}), rng.choice(WEIGHTS).item())
        for name, table in zip(names, tables, strict=True)
    }
    schedule = [(int(rng.integers(1, 900)), {name: rng.choice(WEIGHTS).item() for name in names})]
    data = cp.Mixture(
        sources,
        by,
        epoch=(FIRST, ALL, *names)[rng.integers(2 + len(names))],
        repeat=(True, False, [n for n in names if rng.random() < 0.5])[rng.integers(3)],
        schedule=schedule if rng.random() < 0.3 else (),
    )
    return data, tables if by != "samples" else [np.ones(size, np.int64) for size in sizes]


def check_end(recipe: Recipe, sources: np.ndarray) -> None:
    """Assert that the last sample, and no earlier one, ends the epoch by its rule."""
    sizes, last = np.array(recipe.sizes), sources[-1]
    taken = np.bincount(sources, minlength=len(sizes))
    before = taken - (np.arange(len(sizes)) == last)
    if recipe.epoch == FIRST:
        assert (taken == sizes).sum() == 1
        assert (before < sizes).all()
    elif recipe.epoch == ALL:
        assert (taken >= sizes).all()
        assert (before < sizes).sum() == 1
    else:
        assert last == recipe.names.index(str(recipe.epoch))
    assert taken[last] == sizes[last]
    assert (taken <= sizes)[recipe._ends].all()


def check_order(recipe: Recipe, tables: list[np.ndarray], order: np.ndarray) -> None:
    """Assert that passes are whole, and that shares are kept at every prefix."""
    sources = np.searchsorted(recipe.first_rows, order, side="right") - 1
    check_end(recipe, sources)
    costs, targets = np.zeros(len(order), np.int64), recipe._targets()
    for number, (table, size) in enumerate(zip(tables, recipe.sizes, strict=True)):
        rows = order[sources == number] - recipe.first_rows[number]
        costs[sources == number] = table[rows % size]
        assert (rows // size == np.arange(len(rows)) // size).all()
        assert len(np.unique(rows)) == len(rows)
    largest = max(int(table.max()) for table in tables)
    totals = np.cumsum(costs)
    for number, table in enumerate(tables):
        had = np.cumsum(costs * (sources == number))
        due = np.interp(totals, targets.points, targets.due[:, number])
        assert np.abs(had - due).max() <= largest
        if recipe.costs is not None:  # of what is due at the end: of its own samples
            assert abs(had[-1] - targets.due[-1, number]) <= 1.5 * table.max()


def check(number: int) -> None:
    data, tables = mixture_of(number)
    recipe: Any = data.rows.recipe
    for shuffle in (True, False):
        for epoch in range(2):
            order = recipe.order(number, epoch, shuffle)
            assert len(order) == recipe.samples(shuffle), "an epoch has another length"
            check_order(recipe, tables, order)
    assert len(data) == recipe.samples()


@pytest.mark.parametrize("number", [n for n in range(48) if n != 28])  # which takes 5 s alone
def test_an_epoch_ends_with_the_last_sample_of_the_source_that_ends_it(number: int) -> None:
    check(number)


@pytest.mark.long
@pytest.mark.parametrize("part", range(8))
def test_2000_epochs_end_with_the_last_sample_of_the_source_that_ends_it(part: int) -> None:
    for number in range(part, CASES, 8):
        check(number)
