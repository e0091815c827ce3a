"""What ranks of a pipeline hold after thousands of steps, and what a step costs: `make soak`."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from counterpoise.sched import schedule
from counterpoise.sched.runtime.job import start
from counterpoise.sched.runtime.links.process_groups import make_groups
from tests.sched.runtime.cases import Case, loader_step, make_pipe
from tests.sched.runtime.kept_groups import keep_groups
from tests.sched.runtime.models import make_batches, make_stages
from tests.sched.runtime.pool import Pool, make_mesh
from tests.soak.growth import Held, group_store, held, soak

pytestmark = [pytest.mark.long, pytest.mark.slow]
RANKS, MICROBATCHES = 2, 2


def pipeline_of(case: Case) -> Any:
    program = schedule(case.name, ranks=RANKS, microbatches=MICROBATCHES)
    stages = [stage.float() for stage in make_stages(program.stages)]
    pipe, _ = make_pipe(make_mesh(RANKS), case, program, stages)
    return pipe


def step_of(seed: int) -> Any:
    batches = make_batches(MICROBATCHES, equal=False, seed=seed)
    return loader_step(batches, sum(map(len, batches.ids)))


def train(_rank: int, name: str, turns: int) -> None:
    """Train by turns of 100 steps and an evaluation."""
    pipe = pipeline_of(Case(name, RANKS))
    optimizer = torch.optim.SGD(pipe.parameters(), lr=1e-3)
    steps = [step_of(seed) for seed in range(100)]

    def turn() -> int:
        for step in steps:
            pipe.step(step)
            pipe.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
        pipe.evaluate(steps[0])
        return len(steps)

    soak(turn, held, turns=turns, warm=10)
    pipe.close()


def held_but_for_torch() -> Held:
    """Return what is held without the entries that gloo leaves of each group ever made."""
    entries = [key for key in group_store().list_keys() if "//cpu//" not in key]
    return replace(held(), entries=len(entries))


def make_and_close(_rank: int, name: str) -> None:
    """Make pipelines, each with groups of its own, train a step and close them."""
    vars(start)["make_groups"] = make_groups
    try:

        def turn() -> int:
            pipe = pipeline_of(Case(name, RANKS))
            pipe.step(step_of(0))
            pipe.close()
            return 1

        soak(turn, held_but_for_torch, turns=100, warm=10)
    finally:
        keep_groups()


@pytest.fixture(scope="module")
def ranks():
    pool = Pool(world=RANKS)
    yield pool
    pool.close()


# Of steps as many as a minute allows.
@pytest.mark.parametrize(("name", "turns"), [("1f1b", 100), ("zbv", 50)])
def test_steps_of_a_pipeline_leave_nothing(ranks: Pool, name: str, turns: int) -> None:
    ranks.run(train, name, turns)


def test_pipelines_that_were_closed_leave_nothing(ranks: Pool) -> None:
    ranks.run(make_and_close, "zbv")
