"""How many workers there should be, from looks at a job."""

import itertools

import pytest

from counterpoise.workers.fleet.scaling import (
    GROW_AFTER_S,
    SHRINK_AFTER_S,
    FleetSize,
    Look,
    next_scale,
)

BOUNDS = (2, 64)


def sizes(look_of, seconds, start=4, bounds=BOUNDS):
    """Return the number of workers after each second; all come at once."""
    scale, found = FleetSize(start, 0.0), []
    for second in range(1, seconds + 1):
        scale = next_scale(scale, look_of(scale.workers), bounds, float(second))
        found.append(scale.workers)
    return found


def job(needed):
    """A job that `needed` workers could just do: with fewer ranks are behind, with more none is."""
    return lambda n: Look(n, behind=float(n < needed), busy=min(1.0, needed / n))


@pytest.mark.parametrize("start", [2, 4, 20, 64])
@pytest.mark.parametrize("needed", [1, 3, 10, 40, 100])
def test_it_ends_where_the_job_is_fed_and_moves_no_more(start, needed):
    found = sizes(job(needed), 3000, start)
    end = found[-1]
    assert set(found[-1000:]) == {end}
    # Between what is needed and what would be let go, except at the bounds.
    assert min(needed, 64) <= end <= max(2, needed / 0.5 + 1, start if needed / start >= 0.5 else 2)


def test_it_grows_by_a_quarter_at_most_and_waits_for_the_effect():
    found = sizes(lambda n: Look(n, 1.0, 1.0), 60, start=20)
    changes = [(at, b - a) for at, (a, b) in enumerate(itertools.pairwise(found)) if a != b]
    assert all(0 < by <= 0.25 * found[at] for at, by in changes)
    times = [at for at, _ in changes]
    assert all(b - a >= GROW_AFTER_S for a, b in itertools.pairwise(times))


def test_nothing_is_added_where_workers_are_not_what_ranks_wait_for():
    assert set(sizes(lambda n: Look(n, behind=1.0, busy=0.3), 600)) == {4}


def test_nothing_more_is_asked_for_while_some_have_not_come():
    assert set(sizes(lambda n: Look(n - 1, behind=1.0, busy=1.0), 600)) == {4}


def test_none_is_let_go_before_nobody_was_behind_for_a_while():
    found = sizes(lambda n: Look(n, 0.0, 0.2), int(SHRINK_AFTER_S) + 1, start=8)
    assert found[int(SHRINK_AFTER_S) - 2] == 8
    assert found[-1] == 6


def test_a_job_that_is_behind_now_and_then_keeps_its_workers():
    seconds = itertools.count()
    behind = lambda: float(next(seconds) % 60 < 5)  # noqa: E731
    assert set(sizes(lambda n: Look(n, behind(), 0.4), 600)) == {4}


@pytest.mark.parametrize(("start", "expected"), [(1, 2), (100, 64)])
def test_bounds_hold_from_the_first_look_on(start, expected):
    assert sizes(lambda n: Look(n, 0.0, 0.6), 1, start) == [expected]
