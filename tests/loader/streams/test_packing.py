"""The packing core: full packs, one at a time, and nobody starves."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from counterpoise.loader.streams.packing import WINDOW, Limits, PackWindow, choose

COSTS = st.lists(st.tuples(st.integers(0, 130), st.integers(0, 12)), min_size=1, max_size=60)
LIMITS = st.sampled_from(
    [
        Limits((100, 9), (False, False)),
        Limits((100, 9), (True, False)),
        Limits((100, 9), (True, True)),
    ]
)


def load_of(costs, padded):
    """Return what a pack of samples costs: sums, and count x largest of padded resources."""
    return [
        len(column) * max(column) if is_padded else sum(column)
        for column, is_padded in zip(zip(*costs, strict=True), padded, strict=True)
    ]


def packs_of(rows, limits, **options):
    """Yield the places of each pack's samples, and how many were read for it."""
    window, rest, read = PackWindow(limits, **options), iter(enumerate(rows)), 0
    while True:
        before = read
        while window.wants() and (found := next(rest, None)) is not None:
            window.add(found[0], found[1], found[0], nbytes=1)
            read += 1
        if not window.numbers:
            return
        yield window.take(), read - before


@given(COSTS, LIMITS)
def test_each_sample_is_in_one_pack_in_order_of_arrival_and_within_budgets(rows, limits):
    came = [pack for pack, _ in packs_of(rows, limits)]
    assert sorted(place for pack in came for place in pack) == [*range(len(rows))]
    for pack in came:
        assert pack == sorted(pack)
        load = load_of([rows[place] for place in pack], limits.padded)
        is_alone = len(pack) == 1 and not limits.allow(rows[pack[0]])
        assert is_alone or all(
            cost <= most for cost, most in zip(load, limits.budgets, strict=True)
        )


@given(COSTS, LIMITS)
def test_each_pack_has_the_sample_that_waits_longest(rows, limits):
    places = choose(rows, limits)
    assert places[0] == 0
    waiting = [*range(len(rows))]
    for pack, _ in packs_of(rows, limits):
        assert pack[0] == waiting[0]
        waiting = [place for place in waiting if place not in pack]


@given(COSTS, LIMITS, st.integers(1, 8), st.integers(1, 8))
def test_a_window_holds_no_more_than_it_may(rows, limits, size, most_bytes):
    held = 0
    for pack, read in packs_of(rows, limits, size=size, most_bytes=most_bytes):
        held += read
        assert held <= min(size, most_bytes)
        held -= len(pack)


@pytest.fixture(scope="module")
def tokens(request):
    """Lengths of real samples, in a random order."""
    try:
        known = np.load(request.getfixturevalue("data") / "metadata" / "calibrated_665k.npz")
        found = known["tokens"].astype(int)
    except pytest.skip.Exception:
        found = np.clip(np.random.default_rng(1).lognormal(6.3, 0.8, 20_000).astype(int), 8, 4096)
    return np.random.default_rng(0).permutation(found)[:6_000].tolist()


@pytest.mark.parametrize("budget", [4096, 8192])
def test_packs_are_full(tokens, budget):
    """Of real lengths, at a window of 256, from the first pack on; but for the end."""
    assert WINDOW == 256
    rows = [(each,) for each in tokens]
    came = [sum(tokens[n] for n in pack) for pack, _ in packs_of(rows, Limits((budget,), (False,)))]
    assert np.mean(came) / budget >= 0.98
    assert np.mean(came[:20]) / budget >= 0.96


def test_for_a_pack_no_more_is_read_than_two_packs_hold(tokens):
    """So nobody waits for a whole window, not even at the start."""
    budget, at = 4096, 0
    for pack, read in packs_of([(each,) for each in tokens[:2000]], Limits((budget,), (False,))):
        assert sum(tokens[at : at + read]) < 2 * budget + max(tokens)
        assert pack
        at += read
