"""A rank that is stopped where the others wait for it: all name it, within the deadline."""

import importlib
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from counterpoise.sched import schedule
from counterpoise.sched.runtime import Pipeline, StageModules, checkpoint
from counterpoise.sched.runtime.execution.drive import PipelineStalledError
from counterpoise.sched.runtime.job import start
from counterpoise.sched.runtime.links.process_groups import make_groups
from tests.sched.runtime.cases import loader_step, mean_loss
from tests.sched.runtime.models import HIDDEN, make_batches, make_stages
from tests.sched.runtime.pool import Pool, make_mesh

pytestmark = pytest.mark.slow

# So long that a rank that only starts late, on a loaded machine, is not taken for a stopped one.
RANKS, DEADLINE_S = 2, 4.0
RUNTIME = "counterpoise.sched.runtime"
# What rank 1 is stopped in, and at which call of it.
POINTS = {
    "meet": ("job.start", "place_on_mesh", 1), "agree": ("units.place", "combine", 1),
    "facts": ("units.place", "gather_objects", 1),
    "make groups": ("links.process_groups", "dist.new_group", 1),
    "later groups": ("links.process_groups", "dist.new_group", 2),
    "make the board": ("job.start", "TCPStore", 1),
    "connect": ("links.process_groups", "Groups.warm_up", 1),
    "copy shared": ("gradients", "SharedParameters.copy_values", 1),
    "between steps": ("job.programs", "Programs.compiled", 2),
    "step": ("stage.modules", "Stages.run_pass", 3),
    "end of a step": ("gradients", "Reduction.finish", 1),
    "evaluate": ("pipeline", "Pipeline.evaluate", 1), "clip": ("pipeline", "clip_gradients", 1),
    "timeline": ("pipeline", "Pipeline.timeline", 1), "save": ("checkpoint", "on_all_ranks", 1),
    "save a state": ("pipeline", "Pipeline.state", 1),
    "save the end": ("checkpoint", "on_all_ranks", 3), "load": ("checkpoint", "load_checkpoint", 1),
    "load a file": ("checkpoint", "join_states", 1),
    "load a state": ("pipeline", "Pipeline.load_state", 1),
}  # fmt: skip
ALWAYS = {"copy shared", "save a state"}
# Where the others make or use a group that they can name.
GROUPS = {"make groups", "later groups", "connect"}


def stop_at(module: str, name: str, call: int) -> None:
    """Stop this process at a call of a function."""
    *owners, last = name.split(".")
    owner = importlib.import_module(f"{RUNTIME}.{module}")
    for each in owners:
        owner = getattr(owner, each)
    whole: Callable[..., Any] = getattr(owner, last)
    calls = []

    def stops(*given: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGSTOP)
        return whole(*given, **named)

    setattr(owner, last, stops)


def train(rank: int, point: str, folder: Path) -> str:
    """Do all that ranks do together; return the error, and whether it came in time."""
    start._START_S = DEADLINE_S
    vars(start)["make_groups"] = make_groups  # the pool's have another deadline
    mesh = make_mesh(RANKS)
    if rank == 1:
        stop_at(*POINTS[point])
    program = schedule("1f1b", ranks=RANKS, microbatches=RANKS)
    stages: list[nn.Module] = [stage.float() for stage in make_stages(program.stages)]
    begun = time.monotonic()
    try:
        pipe = Pipeline(
            mesh,
            schedule="1f1b",
            stages=StageModules(
                {rank: stages[rank]},
                shared={"norm": next(p for p in stages[rank].parameters() if p.dim() == 1)},
            ),
            hidden=HIDDEN,
            loss=mean_loss,
            deadline_s=DEADLINE_S,
        )
        step = loader_step(make_batches(RANKS, equal=True), 100)
        doing: list[Callable[[], Any]] = [
            lambda: pipe.step(step),
            lambda: pipe.evaluate(step),
            lambda: pipe.clip_grad_norm_(1.0),
            pipe.timeline,
            lambda: checkpoint.save_checkpoint(folder / "step-1", pipe),
            lambda: checkpoint.load_checkpoint(folder / "step-1", pipe),
        ]
        for each in doing:
            begun = time.monotonic()
            each()
    except PipelineStalledError as error:
        return f"{error} {time.monotonic() - begun < 3 * DEADLINE_S + 5}"
    return f"{rank} came to the end"


@pytest.mark.parametrize(
    "point", [pytest.param(p, marks=[] if p in ALWAYS else pytest.mark.long) for p in POINTS]
)
def test_a_stopped_rank_is_named_wherever_others_wait_for_it(point: str, tmp_path: Path) -> None:
    pool = Pool(RANKS)
    try:
        for pipe in pool.pipes:
            pipe.send((train, (point, tmp_path)))
        assert pool.pipes[0].poll(60), "rank 0 hangs"
        fine, text = pool.pipes[0].recv()
        assert fine, text
        named = "for rank 1, which did not come to|; rank 1 (at|is at) |of rank 1|rank 1 is at"
        assert re.search(named, text), text
        if point in GROUPS:
            assert re.search(r"process 0 (makes|uses) the group \(\d, \d\) of processes", text), (
                text
            )
        assert text.endswith("True"), text
    finally:
        pool.kill()
