"""The plan is made again on real ranks, with injected times: all switch at the same step."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

from benchmarks.encoder.cases import EncoderCase
from benchmarks.encoder.drift import DRIFT, DriftCase, plan_case
from benchmarks.encoder.ranks import sleeping_pipe, sleeping_step
from counterpoise.sched import Program, Replan, Slot, simulate
from counterpoise.sched.runtime import Pipeline, resumed_schedule
from counterpoise.sched.runtime.checkpoint import write_plans
from tests.sched.runtime.pool import Pool, make_mesh

pytestmark = pytest.mark.slow

# The plans are those of the times; the passes take none.
QUICK = EncoderCase("quick", 8, forward=0, backward=0, layer_forward=0, layer_backward=0, layers=4)
CASE = DriftCase(replace(DRIFT.case, microbatches=8), slow=1, start=5)


class Told:
    """Times that a pipeline is told instead of the host's."""

    def __init__(self, rank: int, drift: DriftCase) -> None:
        self.rank, self.drift = rank, drift
        self.pipe: Pipeline | None = None

    def __call__(self, step: int, slots: Sequence[Slot]) -> Sequence[Slot]:
        assert self.pipe is not None
        program = self.pipe.programs()[self.drift.case.microbatches]
        found = simulate(program, self.drift.costs(step)).ranks[self.rank]
        assert [slot.what for slot in found] == [slot.what for slot in slots]
        return found


def make(mesh: DeviceMesh, drift: DriftCase, program: Program) -> Pipeline:
    own = mesh["pp"].get_local_rank()
    told = Told(own, drift)
    settings = Replan(partial(plan_case, drift.case), drift.profile, measure=told)
    pipe, _ = sleeping_pipe(mesh, own, QUICK, program, settings)
    told.pipe = pipe
    return pipe


def run(rank: int, drift: DriftCase, program: Program, steps: int, folder: Path) -> Any:
    """Train, and save the plan after 7 steps; return the changes, and what ran at the end."""
    pipe = make(make_mesh(4), drift, program)
    for step in range(steps):
        pipe.step(sleeping_step(QUICK))
        if step == 6:
            own = folder / str(rank)
            own.mkdir()
            digests = write_plans(own, pipe)
            (own / "checksums.json").write_text(json.dumps(digests))
    return ended(pipe)


def go_on(rank: int, drift: DriftCase, program: Program, steps: int, folder: Path) -> Any:
    own = folder / str(rank)
    pipe = make(make_mesh(4), drift, resumed_schedule(own, lambda *_: program)(4, 8))
    assert pipe.replanner is not None
    pipe.replanner.load((own / "plan.json").read_text())
    for _ in range(7, steps):
        pipe.step(sleeping_step(QUICK))
    return ended(pipe)


def ended(pipe: Pipeline) -> Any:
    assert pipe.replanner is not None
    found = pipe.plan_changes(), str(pipe.programs()[8]), pipe.replanner.text()
    pipe.close()
    return found


def test_all_ranks_switch_at_one_step_and_a_resumed_job_does_too(
    pool: Pool, tmp_path: Path
) -> None:
    first, best = CASE.program(0), CASE.program(CASE.start)
    whole = pool.run(run, CASE, first, 20, tmp_path)
    assert all(answer == whole[0] for answer in whole)
    (change,), text, _ = whole[0]
    assert CASE.start < change.step <= CASE.start + 10
    assert text == str(best) != str(first)
    assert (change.before_ns, change.after_ns) == CASE.simulated_ns
    # The times that are told are the simulator's, so all that was promised is won.
    assert change.measured_gain == pytest.approx(change.gain, abs=1e-3)
    assert change.gain > 0.02
    again = pool.run(go_on, CASE, first, 20, tmp_path)
    assert again == whole


def learn(rank: int, drift: DriftCase, program: Program, followed: bool, tp: int) -> Any:
    """Return the weights of this rank after ten steps, in which the plan changes, or does not.

    And the last program; `tp`: processes of each rank, which all do the same.
    """
    del rank
    mesh = make_mesh(4, tp=tp)
    own = mesh["pp"].get_local_rank()
    torch.manual_seed(own)
    if followed:
        pipe = make(mesh, drift, program)
    else:
        pipe, _ = sleeping_pipe(mesh, own, QUICK, program)
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.01)
    for _ in range(10):
        pipe.step(sleeping_step(QUICK))
        optimizer.step()
        optimizer.zero_grad()
    assert len(pipe.plan_changes()) == int(followed)
    found = [float(p.detach().sum()) for p in pipe.parameters()], str(pipe.programs()[8])
    pipe.close()
    return found


@pytest.mark.long
def test_what_is_learnt_does_not_depend_on_the_plan(pool: Pool) -> None:
    assert_alike(pool, 1)


@pytest.mark.long
def test_all_lanes_of_tensor_parallelism_take_the_plan() -> None:
    eight = Pool(8)
    assert_alike(eight, 2)
    eight.close()


def assert_alike(pool: Pool, tp: int) -> None:
    """Check that all processes end with one plan, and what they learn with and without it."""
    drift = replace(CASE, start=3)
    first = drift.program(0)
    ours, theirs = (pool.run(learn, drift, first, followed, tp) for followed in (True, False))
    (planned,), (kept,) = ({program for _, program in found} for found in (ours, theirs))
    assert planned != kept == str(first)
    for (one, _), (other, _) in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other, rel=1e-5)
