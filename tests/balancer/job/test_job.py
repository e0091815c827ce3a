"""A played job hands out what a local loop does, whatever its network and its processes do."""

from itertools import count
from typing import Any

import pytest

from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.shuffle import permutation
from counterpoise.balancer.run.ahead import LoopCosts, PlanAhead, PlanFeed
from counterpoise.balancer.run.planning import Planning
from counterpoise.balancer.run.run import PlannedRun
from counterpoise.balancer.run.steps import RunSettings, plain_contents
from counterpoise.balancer.run.tasks import InlineTasks, RunError, RunStart
from tests.balancer.job.cluster import START, Cluster, Setting

FACTS = (
    *("rank", "step", "microbatch", "microbatches", "weights", "costs", "padding", "after"),
    *("keys", "step_holes"),
)


def facts_of(thing: Any) -> list[Any]:
    return [getattr(thing, name) for name in FACTS]


def delivered_here(setting: Setting) -> tuple[dict[int, list[Any]], str]:
    """Return what a local loop that plays all ranks hands out, by rank, and why it ends."""
    if setting.killer >= 0:  # a sample that kills is as one that is broken
        setting.broken |= {setting.killer}
    plan, source = setting.plan, setting.source()
    costs = LoopCosts(len(source), ("tokens",))
    feed = PlanFeed(
        0, permutation(len(source), plan.seed, 0, shuffle=True), make_planner(plan), costs, START
    )
    played = tuple(range(plan.ranks))
    planning = Planning(
        lambda: PlanAhead(feed, 1024, plan.samples_per_step),
        lambda step: plain_contents(step, played, setting.job.label, plan.sizing, True, False),
    )
    settings = RunSettings(setting.job, source, played, False, False, True, False)
    run = PlannedRun(
        settings, RunStart(0, START), InlineTasks(setting.reader()), planning, count(1)
    )
    found: dict[int, list[Any]] = {rank: [] for rank in played}
    while not run.is_at_end():
        run.pump(0.01)
        head = run.head()
        if isinstance(head, RunError):
            return found, str(head)
        assert not isinstance(head, Exception)
        if head is not None:
            batch = None if head.loaded is None else head.loaded.batch
            found[head.batch.rank].append((facts_of(head.batch), batch))
            run.release(head.batch)
    return found, ""


def run_setting(seed: int, faults: bool = True) -> None:
    setting = Setting(seed, faults)
    cluster = Cluster(setting)
    cluster.run()
    expected, failure = delivered_here(setting)
    for (rank, sharer), trainer in cluster.trainers.items():
        got = [(facts_of(give.facts), batch) for give, batch in trainer.delivered]
        assert bool(trainer.session.failure) == bool(failure), trainer.session.failure
        if failure:
            assert got == expected[rank][: len(got)], (rank, sharer)
        else:
            assert got == expected[rank], (rank, sharer)
    cluster.end()


@pytest.mark.parametrize("start", [0, pytest.param(20, marks=pytest.mark.long)])
def test_a_job_hands_out_what_a_local_loop_does(start: int) -> None:
    for seed in range(start, start + 20):
        run_setting(seed, faults=False)


@pytest.mark.parametrize(
    "start", [0, 25, *(pytest.param(start, marks=pytest.mark.long) for start in (50, 75))]
)
def test_a_job_does_so_whatever_its_network_and_processes_do(start: int) -> None:
    for seed in range(start, start + 25):
        run_setting(seed)


@pytest.mark.parametrize("seed", [141, 189, 366])
def test_no_sample_is_named_for_workers_that_began_anew(seed: int) -> None:
    run_setting(seed)


@pytest.mark.long
@pytest.mark.parametrize("start", range(100, 2100, 100))
def test_2000_jobs_do_so(start: int) -> None:
    for seed in range(start, start + 100):
        run_setting(seed)
