"""The joint search: the optimum of all plans, and never behind what single planners find."""

import pytest

from counterpoise.sched.planners.job.layers import choices
from counterpoise.sched.planners.job.plan import JobPlan
from counterpoise.sched.planners.job.pricing import Pricer
from counterpoise.sched.planners.job.search import search
from tests.sched.planners.job.random_jobs import a_job, every_plan

KEEP = 4
LEAST, MOST = 1000, 20_000


def optimum(seed: int) -> tuple[int | None, int, list[set[object]]]:
    """Return the least step of all plans of a job, their number, and the values of each choice."""
    pricer, best, count = Pricer(a_job(seed)), None, 0
    values: list[set[object]] = [set() for _ in range(6)]
    for plan in every_plan(pricer, KEEP):
        count += 1
        for own, one in zip(values, plan, strict=True):
            own.add(one)
        step = pricer.evaluate(plan)
        if step is not None and (best is None or step < best):
            best = step
        if count > MOST:
            break
    return best, count, values


def finds_the_optimum(seed: int) -> bool:
    """Return whether the search finds the least step; False for jobs that are no test of it."""
    best, count, values = optimum(seed)
    if not LEAST <= count <= MOST or sum(len(own) > 1 for own in values) < 4:
        return False
    pricer = Pricer(a_job(seed))
    found = search(choices(pricer, KEEP), pricer.evaluate, pricer.bound)
    assert found.best
    assert found.best[0].value == best
    assert found.evaluated < count / 2
    return True


@pytest.mark.parametrize("seed", [2, 6, 8])
def test_the_optimum_of_all_plans(seed: int) -> None:
    assert finds_the_optimum(seed)


@pytest.mark.long
def test_the_optimum_of_fifty_jobs() -> None:
    found = 0
    for seed in range(1000):
        found += finds_the_optimum(seed)
        if found == 50:
            return
    pytest.fail(f"only {found} jobs of 1,000 have so many plans")


@pytest.mark.parametrize("seed", range(3))
def test_bounds_are_never_above_a_plan_that_begins_so(seed: int) -> None:
    pricer = Pricer(a_job(seed))
    for number, plan in enumerate(every_plan(pricer, 2)):
        if number % 7 or (step := pricer.evaluate(plan)) is None:
            continue
        for length in range(1, 7):
            bound = pricer.bound(plan[:length])
            assert bound is not None
            assert bound <= step, (length, JobPlan(*plan))


def test_a_limited_search_returns_the_best_it_saw_and_its_bound() -> None:
    pricer = Pricer(a_job(2))
    made = choices(pricer, KEEP)
    best = search(made, pricer.evaluate, pricer.bound).best[0].value
    found = search(made, pricer.evaluate, pricer.bound, most=60, dive=3)
    assert found.best
    assert found.bound <= best <= found.best[0].value < 2 * best


def test_the_plans_kept_differ_in_their_first_choices() -> None:
    pricer = Pricer(a_job(2))
    found = search(choices(pricer, KEEP), pricer.evaluate, pricer.bound, keep=4, apart=3)
    values = [one.value for one in found.best]
    assert values == sorted(values)
    assert len({one.plan[:3] for one in found.best}) == 4
