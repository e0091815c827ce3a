"""The joint search: the optimum of all plans, and never behind what single planners find."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from counterpoise.sched.planners.job.layers import choices
from counterpoise.sched.planners.job.plan import JobPlan, ScheduleChoice
from counterpoise.sched.planners.job.pricing import Pricer
from counterpoise.sched.planners.job.search import search
from counterpoise.sched.planners.recompute import modelled_stages, plan_recompute
from counterpoise.sched.planners.stage_split import BASELINES, balanced_partition, step_timer
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


@pytest.mark.parametrize("seed", [13, 16, 42])
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


@pytest.mark.parametrize("seed", [4, 22, 42])
def test_bounds_are_never_above_a_plan_that_begins_so(seed: int) -> None:
    pricer = Pricer(a_job(seed))
    for number, plan in enumerate(every_plan(pricer, 2)):
        if number % 23 or (step := pricer.evaluate(plan)) is None:
            continue
        for length in range(1, 7):
            bound = pricer.bound(plan[:length])
            assert bound is not None
            assert bound <= step, (length, JobPlan(*plan))


def single_planners(pricer: Pricer) -> Iterator[JobPlan]:
    """Yield the plans that the planners of stages and of recomputation make of all sizes."""
    job = pricer.job
    place = "first" if "first" in job.choose_placement(()) else job.choose_placement(())[0]
    if place not in ("first", "none"):
        return
    for sizes in job.choose_sizes((place,)):
        for batch in job.choose_batch((place, sizes, ScheduleChoice("1f1b"))):
            empty = JobPlan(place, sizes, ScheduleChoice("1f1b"), batch, (), ())
            layout = replace(empty.layout(), recompute="none")
            most = pricer.loads(sizes.pipeline.dp, batch).most
            layers = pricer.chain(job.pipeline(place), layout, most)
            timer = step_timer(layers, job.device, layout)
            usual = [method(layers, layout.pp) for method in BASELINES.values()]
            stages = balanced_partition(layers, layout.pp, timer, also=usual)[0][0]
            plan = replace(empty, stages=stages, recompute=((),) * len(stages))
            if max(pricer.memory(plan)) > job.memory_bytes:
                model = modelled_stages(layers, replace(layout, stages=stages))
                try:
                    found = plan_recompute(model.stages, model.saving, job.memory_bytes)
                except ValueError:
                    continue
                plan = replace(plan, recompute=tuple(one.recompute for one in found))
            yield plan


def is_not_behind(seed: int) -> bool:
    """Return whether the search is as good as single planners; False without plans of theirs."""
    pricer = Pricer(a_job(seed))
    theirs = [
        pricer.priced(plan).step_ns
        for plan in single_planners(pricer)
        if max(pricer.memory(plan)) <= pricer.job.memory_bytes
    ]
    found = search(choices(pricer), pricer.evaluate, pricer.bound)
    assert not theirs or found.best[0].value <= min(theirs)
    return bool(theirs)


def test_never_behind_single_planners() -> None:
    assert is_not_behind(6)


@pytest.mark.long
def test_never_behind_single_planners_on_twenty_jobs() -> None:
    found = 0
    for seed in range(100):
        found += is_not_behind(seed)
        if found == 20:
            return
    pytest.fail(f"only {found} of 100 jobs have plans of single planners")


def test_a_limited_search_returns_the_best_it_saw_and_its_bound() -> None:
    pricer = Pricer(a_job(42))
    made = choices(pricer, KEEP)
    best = search(made, pricer.evaluate, pricer.bound).best[0].value
    found = search(made, pricer.evaluate, pricer.bound, most=60, dive=3)
    assert found.best
    assert found.bound <= best <= found.best[0].value < 2 * best


def test_the_plans_kept_differ_in_their_first_choices() -> None:
    pricer = Pricer(a_job(42))
    found = search(choices(pricer, KEEP), pricer.evaluate, pricer.bound, keep=4, apart=3)
    values = [one.value for one in found.best]
    assert values == sorted(values)
    assert len({one.plan[:3] for one in found.best}) == 4
