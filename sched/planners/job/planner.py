"""Plan a job, and say where its time goes and what it gains over how it would be run today."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...simulation.simulator import simulate
from ...simulation.timeline import Timeline
from ..stage_split import even_stages
from .layers import choices
from .plan import EXACT_GPUS, BatchChoice, Job, JobPlan, ScheduleChoice
from .pricing import Pricer
from .search import Outcome, Ranked, search

# Beginnings of plans that are continued where there are more GPUs.
MOST_CONTINUED = 1000
CAUSES = ("waiting", "bubbles", "recomputation", "communication", "padding")


@dataclass(frozen=True, slots=True)
class PricedPlan:
    """A plan with its step, its memory and the shares of all GPUs' time that are lost, by cause."""

    plan: JobPlan
    step_ns: int
    memory_bytes: tuple[int, ...]
    lost: dict[str, float]
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """The plan, the next ones of other sizes or schedules, and what would be run today.

    `bound_ns`: no step is shorter; the plan's own where it is the optimum. `today`: None where
    nothing that is usual fits.
    """

    best: PricedPlan
    next_plans: tuple[PricedPlan, ...]
    today: PricedPlan | None
    bound_ns: int
    evaluated: int


def plan_job(
    job: Job, *, keep: int = 4, look: Callable[[int, int], object] = lambda _a, _b: None
) -> JobAnswer:
    """Return the best plan of a job and the `keep` - 1 next ones.

    Raises ValueError, with the rank and the bytes that are missing, if no plan fits into memory.
    """
    pricer = Pricer(job)
    outcome = _search(job, pricer, keep, look)
    if not outcome.best:
        raise ValueError(_missing(pricer))
    best = [priced_plan(pricer, JobPlan(*ranked.plan)) for ranked in outcome.best]
    usual = usual_plan(pricer)
    today = None if usual is None else priced_plan(pricer, usual)
    return JobAnswer(best[0], tuple(best[1:]), today, outcome.bound, outcome.evaluated)


def _search(job: Job, pricer: Pricer, keep: int, look: Callable[[int, int], object]) -> Outcome:
    run = partial(search, evaluate=pricer.evaluate, bound=pricer.bound, keep=keep, apart=3)
    if job.gpus <= EXACT_GPUS:
        return run(choices(pricer), look=look)
    outcomes: list[Outcome] = []
    places = tuple(job.choose_placement(()))
    for place in places:
        place_choices = [lambda _, place=place: (place,), *choices(pricer, keep=0)[1:]]
        outcomes.append(run(place_choices, most=MOST_CONTINUED // len(places), dive=3, look=look))
    plans = (plan for outcome in outcomes for plan in outcome.best)
    best: list[Ranked] = sorted(plans, key=lambda plan: plan.value)
    least = min([*(outcome.bound for outcome in outcomes), *(plan.value for plan in best[:1])])
    return Outcome(tuple(best[:keep]), sum(outcome.evaluated for outcome in outcomes), least)


def _missing(pricer: Pricer) -> str:
    """Return what the plan that needs least lacks: its fullest rank, and the bytes."""
    job, plain = pricer.job, ScheduleChoice("1f1b")
    plans: list[JobPlan] = []
    for place in job.choose_placement(()):
        for sizes in job.choose_sizes((place,)):
            stages = even_stages(job.parts[job.pipeline(place)].layers, sizes.pipeline.pp)
            *_, largest = job.choose_batch((place, sizes, plain))
            plans.append(JobPlan(place, sizes, plain, largest, stages, ()).recomputed())
    if not plans:
        return (
            f"no plan fills {job.gpus} GPUs with steps of {job.batch} samples: CP {job.cp} x TP "
            f"({', '.join(map(str, job.tensor))}) x PP x DP have to, with a sample for each "
            "replica; use other sizes of TP, fewer GPUs, or more samples"
        )
    plan = min(plans, key=lambda plan: max(pricer.memory(plan)))
    rank_bytes = pricer.memory(plan)
    rank, most, gb = int(np.argmax(rank_bytes)), max(rank_bytes), 1e9
    return (
        f"no plan on {job.gpus} GPUs fits into {job.memory_bytes / gb:.1f} GB: even {plan} needs "
        f"{most / gb:.1f} GB on rank {rank}, {(most - job.memory_bytes) / gb:.1f} GB "
        "more than there are; use more GPUs, or fewer samples a microbatch (--batch)"
    )


def usual_plan(pricer: Pricer) -> JobPlan | None:
    """Return what Megatron-LM's defaults give, or None if none of it fits.

    Equal layers a stage, the encoder in front of the first, 1F1B, samples as they come, everything
    recomputed if it does not fit otherwise; of all sizes those of the shortest step.
    """
    job, plain = pricer.job, ScheduleChoice("1f1b")
    place = "first" if job.encoder_layers else "none"
    best: tuple[int, JobPlan] | None = None
    for sizes in job.choose_sizes((place,)):
        stages = even_stages(job.parts[job.pipeline(place)].layers, sizes.pipeline.pp)
        for batch in job.choose_batch((place, sizes, plain)):
            if batch.ordering != "given":
                continue
            fixed = BatchChoice(batch.microbatches, "fixed")
            nothing = JobPlan(place, sizes, plain, fixed, stages, ((),) * len(stages))
            both = nothing, nothing.recomputed()
            plan = next((p for p in both if max(pricer.memory(p)) <= job.memory_bytes), None)
            # Simulated only where the bound does not rule it out.
            if plan and (best is None or pricer.bound_of_stages(plan) < best[0]):
                step = pricer.priced(plan).step_ns
                best = (step, plan) if best is None or step < best[0] else best
    return None if best is None else best[1]


def priced_plan(pricer: Pricer, plan: JobPlan) -> PricedPlan:
    """Return a plan with all that is reported of it."""
    priced = pricer.priced(plan)
    timeline = simulate(priced.program, priced.costs)
    step, loads = priced.step_ns, pricer.loads(plan.unit.dp, plan.batch)
    encoder, ranks = plan.sizes.encoder, len(timeline.ranks)
    front = encoder.pp if encoder else 0
    # A rank counts as all its GPUs; idle ones of the cluster are bubbles.
    gpus = np.full(ranks, plan.unit.tp * plan.unit.dp)
    gpus[:front] = encoder.tp * encoder.dp if encoder else 0
    whole = float(step * pricer.job.gpus // pricer.job.cp)
    work = np.array(timeline.work_ns) @ gpus / whole
    moved = np.array([idle.communication_ns for idle in timeline.bubbles])
    ends = [end - a - b for end, a, b in zip(priced.end_ns, timeline.work_ns, moved, strict=True)]
    after = np.array(priced.reduce_ns)
    idle_after = step - np.array(priced.end_ns) - after - np.array(priced.optimizer_ns)
    again, synced = pricer.extra_ns(plan)
    lost = {
        "waiting": work * (1 - loads.mean_share),
        "bubbles": float((np.array(ends) + idle_after) @ gpus / whole)
        + max(0.0, 1 - float(gpus.sum()) * step / whole),
        "recomputation": float(np.array(again) @ gpus[front:] / whole) * loads.mean_share,
        "communication": float((moved + after) @ gpus / whole)
        + float(np.array(synced) @ gpus[front:] / whole) * loads.mean_share,
        "padding": work * loads.mean_share * loads.padding,
    }
    exact = pricer.memory(plan, priced)
    return PricedPlan(plan, step, exact, {k: round(float(v), 4) for k, v in lost.items()}, timeline)


def mfu(job: Job, step_ns: int) -> float:
    """Return the share of the GPUs' peak that a step's forward and backward operations are.

    Recomputation does not count, and a frozen encoder's backward neither.
    """
    flops = 3 * job.model.forward_flops(job.amounts)
    frozen = [part for part in job.model.parts if part.frozen]
    first = bool(job.model.parts and job.model.parts[0].frozen)
    flops -= sum((2 if first else 1) * part.forward_flops(job.amounts) for part in frozen)
    return flops * 1e9 / (step_ns * job.gpus * job.device.flops_per_s)


def tokens_per_s(job: Job, step_ns: int) -> float:
    """Return the language model's tokens a second."""
    return job.amounts["tokens"] * 1e9 / step_ns
