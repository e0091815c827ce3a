"""The joint search: the optimum of all plans, and never behind what single planners find."""

from collections.abc import Iterator
from dataclasses import fields, replace

import pytest

from counterpoise.sched.bubble_filling.choose import scan
from counterpoise.sched.bubble_filling.presets import model_setup, with_encoder_collectives
from counterpoise.sched.planners.job.layers import Layers, choices
from counterpoise.sched.planners.job.plan import (
    PLACEMENTS,
    BatchChoice,
    JobPlan,
    ScheduleChoice,
    Sizes,
)
from counterpoise.sched.planners.job.pricing import Pricer
from counterpoise.sched.planners.job.search import search
from counterpoise.sched.planners.orchestration.models import make_modules
from counterpoise.sched.planners.orchestration.simulated import plan_layouts
from counterpoise.sched.planners.orchestration.units import OrchestrationProblem
from counterpoise.sched.planners.recompute import modelled_stages, plan_recompute
from counterpoise.sched.planners.stage_split import balanced_partition, even_stages, step_timer
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


@pytest.mark.parametrize("seed", [16, 42])
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


def recomputed(pricer: Pricer, plan: JobPlan) -> JobPlan | None:
    """Return a plan with what the planner of recomputation needs; None if it finds nothing."""
    if max(pricer.memory(plan)) <= pricer.job.memory_bytes:
        return plan
    if plan.schedule.chunks > 1:
        return None
    layout = replace(plan.layout(), recompute="none")
    most = pricer.loads(plan.unit.dp, plan.batch).most
    layers = pricer.layers(plan, most)
    stages, saving = modelled_stages(layers, layout)
    try:
        found = plan_recompute(stages, saving, pricer.job.memory_bytes)
    except ValueError:
        return None
    return replace(plan, recompute=tuple(one.recompute for one in found))


def choices_of(plan: JobPlan) -> tuple[object, ...]:
    return tuple(getattr(plan, one.name) for one in fields(plan))


def empty_plan(place: str, sizes: Sizes, chunks: int, batch: BatchChoice) -> JobPlan:
    name = "interleaved" if chunks > 1 else "1f1b"
    return JobPlan(place, sizes, ScheduleChoice(name, chunks), batch, (), ())


def with_stages(plan: JobPlan, stages: Layers) -> JobPlan:
    return replace(plan, stages=stages, recompute=((),) * len(stages))


def partitions(pricer: Pricer) -> Iterator[JobPlan]:
    """Yield what the planners of stages and of recomputation make of all sizes."""
    job = pricer.job
    (place,) = {"first", "none"} & {*job.choose_placement(())}
    for sizes in job.choose_sizes((place,)):
        for batch in job.choose_batch((place, sizes, ScheduleChoice("1f1b"))):
            plan = empty_plan(place, sizes, 1, batch)
            yield with_stages(plan, stages_by_time(pricer, plan))


def stages_by_time(pricer: Pricer, plan: JobPlan) -> Layers:
    """Return what `--only partition` answers for a plan's sizes."""
    layout = replace(plan.layout(), recompute="none")
    most = pricer.loads(plan.unit.dp, plan.batch).most
    layers = pricer.layers(plan, most)
    timer = step_timer(layers, pricer.job.device, layout)
    return balanced_partition(layers, layout.pp, timer)[0][0]


def orchestrated(pricer: Pricer) -> Iterator[JobPlan]:
    """Yield the layouts of `--only orchestrate`, with its equal stages and with partition's."""
    job = pricer.job
    if "units" not in job.choose_placement(()):
        return
    mean = {name: amount // job.batch for name, amount in job.amounts.items()}
    # Of the sizes of TP that the job allows.
    modules = tuple(
        replace(
            module,
            forward_ns={tp: module.forward_ns[tp] for tp in job.tensor},
            backward_ns={tp: module.backward_ns[tp] for tp in job.tensor},
        )
        for module in make_modules(job.model, job.device, mean)
    )
    problem = OrchestrationProblem(
        modules, job.gpus, job.batch, job.memory_bytes,
        job.device.network_bytes_per_s // 10**6,
    )  # fmt: skip
    try:
        layouts = plan_layouts(problem)
    except ValueError:  # nothing fits
        return
    count = len(job.model.language.layers)
    for ranked in layouts:
        encoder, unit = ranked.layout.units
        batch = BatchChoice(job.batch // unit.dp)
        plan = empty_plan("units", Sizes(replace(unit, vpp=1), encoder), unit.vpp, batch)
        yield with_stages(plan, even_stages(count, unit.pp * unit.vpp))
        if unit.vpp == 1:
            yield with_stages(plan, stages_by_time(pricer, plan))


def filled(pricer: Pricer) -> Iterator[JobPlan]:
    """Yield pipelines whose bubbles `schedule fill` fills with whole copies of the encoder."""
    job = pricer.job
    if "bubbles" not in job.choose_placement(()):
        return
    count = len(job.model.language.layers)
    for sizes in job.choose_sizes(("bubbles",)):
        unit = sizes.pipeline
        for chunks in (1, 2):
            if unit.pp == 1 or count % (unit.pp * chunks):
                continue
            stages = (count // (unit.pp * chunks),) * unit.pp * chunks
            one = ScheduleChoice("interleaved" if chunks > 1 else "1f1b", chunks)
            for batch in job.choose_batch(("bubbles", sizes, one)):
                plan = with_stages(empty_plan("bubbles", sizes, chunks, batch), stages)
                parts = unit.dp * batch.microbatches
                mean = {name: amount // parts for name, amount in job.amounts.items()}
                for again in ((), tuple(range(stages[0]))):
                    chosen = replace(plan, recompute=(again,) * len(stages))
                    if max(pricer.memory(chosen)) > job.memory_bytes:
                        continue
                    layout = replace(plan.layout(), recompute="all" if again else "none")
                    setup = model_setup(job.model, job.device, layout, mean)
                    setup = replace(setup, memory_bytes=job.memory_bytes)
                    best = scan(with_encoder_collectives(setup, job.device)).chosen[:1]
                    # A copy over several ranks, or recomputed, is none of the joint search's.
                    if [(o.plan.stages, o.plan.tensor) for o in best] == [(1, unit.tp)]:
                        yield chosen


def answers(seed: int) -> dict[str, int]:
    """Return how many answers of each planner fit, none of which is better than the search's."""
    job = a_job(seed)
    if job.encoder_layers:
        job = replace(job, placements=PLACEMENTS)
    pricer, counts = Pricer(job), {}
    found = search(choices(pricer), pricer.evaluate, pricer.bound).best
    for planner in (partitions, orchestrated, filled):
        plans = [recomputed(pricer, plan) for plan in planner(pricer)]
        steps = [pricer.evaluate(choices_of(plan)) for plan in plans if plan is not None]
        fitting = [step for step in steps if step is not None]
        assert not fitting or found[0].value <= min(fitting), planner.__name__
        counts[planner.__name__] = len(fitting)
    return counts


def test_never_behind_single_planners() -> None:
    assert all(answers(10).values())


@pytest.mark.long
def test_never_behind_single_planners_on_twenty_jobs() -> None:
    jobs = dict.fromkeys(("partitions", "orchestrated", "filled"), 0)
    for seed in range(100):
        for name, count in answers(seed).items():
            jobs[name] += count > 0
        if min(jobs["partitions"], jobs["orchestrated"], 2 * jobs["filled"]) >= 20:
            return
    pytest.fail(f"jobs of 100 with answers of single planners: {jobs}")


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
