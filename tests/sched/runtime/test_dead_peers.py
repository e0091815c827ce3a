"""A dead or stopped peer: every other rank says who waits for whom, and ends with an error."""

import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from counterpoise.sched import schedule
from counterpoise.sched.runtime import Pipeline
from tests.sched.runtime.cases import loader_step, mean_loss
from tests.sched.runtime.models import HIDDEN, make_batches, make_stages
from tests.sched.runtime.pool import WORLD, Pool

pytestmark = pytest.mark.slow

DEADLINE_S = 4.0
# Of a rank that waits: its pass, what it waits for with the microbatch, and of which rank.
WAITS = r"rank \d at \S+ waits since \d+ s for \d[A-Z_]+\d+ of rank \d"
AT_THE_END = r"rank \d is at the end of step \d+ since \d+ s"


class Hanging(nn.Module):
    """A stage that never ends its tenth forward."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside, self.runs = inside, 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        while self.runs == 10:
            signal.pause()
        return self.inside(x)


def train_for_ever(rank: int, name: str, pp: int, folder: str, hangs: int = -1) -> None:
    """Run steps until a peer is lost; leave a file in the folder after the first.

    `hangs`: the rank whose stage hangs in the second step.
    """
    mesh = init_device_mesh("cpu", (dist.get_world_size() // pp, pp), mesh_dim_names=("dp", "pp"))
    program = schedule(name, ranks=pp, microbatches=8)
    stages = make_stages(program.stages)
    if rank == hangs:
        stages[rank] = Hanging(stages[rank])
    pipe = Pipeline(
        mesh,
        schedule=name,
        stages={s: stages[s].float() for s in program.stages_of(mesh["pp"].get_local_rank())},
        hidden=HIDDEN,
        loss=mean_loss,
        deadline_s=DEADLINE_S,
    )
    optimizer = torch.optim.SGD([p for m in pipe.modules() for p in m.parameters()], lr=0.1)
    batches = make_batches(8, equal=False)
    # On a busy machine processes come to their first step at different times.
    pipe.deadline_s = 60.0
    while True:
        pipe.step(loader_step(batches, 100))
        pipe.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        Path(folder, str(rank)).touch()
        pipe.deadline_s = DEADLINE_S


def lose(
    train: Callable[..., None],
    given: tuple[Any, ...],
    victim: int,
    how: signal.Signals,
    draw: float,
    folder: Path,
    world: int = WORLD,
) -> Iterator[tuple[int, str]]:
    """Let processes train, kill or stop one, and yield what each of the others says."""
    pool = Pool(world)
    try:
        for pipe in pool.pipes:
            pipe.send((train, (*given, str(folder))))
        while len(list(folder.iterdir())) < world:
            pool.processes[victim].join(0.1)
            failed = [pipe.recv()[1] for pipe in pool.pipes if pipe.poll()]
            assert not failed, "\n".join(failed)
        # Any moment of a step: passes, messages under way, or sums after them.
        pool.processes[victim].join(draw)
        os.kill(pool.processes[victim].pid or 0, how)
        for rank, pipe in enumerate(pool.pipes):
            if rank != victim:
                assert pipe.poll(DEADLINE_S + 30), f"rank {rank} hangs"
                try:
                    fine, text = pipe.recv()
                except EOFError:
                    pool.processes[rank].join()
                    fine, text = False, f"ended with {pool.processes[rank].exitcode}"
                assert not fine
                yield rank, text
    finally:
        pool.kill()


def lose_rank(
    name: str, victim: int, how: signal.Signals, draw: float, folder: Path, pp: int, world: int
) -> None:
    """Lose one rank of pipelines, and check what the others say."""
    for rank, text in lose(train_for_ever, (name, pp), victim, how, draw, folder, world):
        _check_report(text, rank, victim, pp)


def _check_report(text: str, rank: int, victim: int, pp: int) -> None:
    """The last line is the error: it leads from the rank to the one that is lost."""
    error = text.strip().splitlines()[-1]
    own, lost = rank % pp, victim % pp
    assert error.startswith("counterpoise.sched.runtime.execution.drive.PipelineStalledError"), text
    assert re.search(f"step \\d+: rank {own} (at|is at)", error), error
    assert re.search(WAITS, error) or re.search(AT_THE_END, error), error
    assert re.search(f"rank {lost} (at|is at) [^;]*not heard of since", error), error


@pytest.mark.parametrize(
    ("victim", "how", "pp", "world"),
    [
        (0, signal.SIGKILL, 3, 3),
        (1, signal.SIGSTOP, 3, 3),
        pytest.param(3, signal.SIGKILL, 2, 4, marks=pytest.mark.long),
    ],
    ids=["killed", "stopped", "killed in the other pipeline"],
)
def test_all_others_say_who_waits_for_whom(victim, how, pp, world, tmp_path) -> None:
    lose_rank("1f1b", victim, how, 0.5, tmp_path, pp, world)


def test_a_rank_that_hangs_is_ended_once_the_others_have_given_up(tmp_path) -> None:
    pool = Pool(2)
    try:
        for pipe in pool.pipes:
            pipe.send((train_for_ever, ("1f1b", 2, str(tmp_path), 1)))
        fine, text = pool.pipes[0].recv()
        assert not fine
        assert "rank 1 is at 1F1 since" in text
        pool.processes[1].join(60)
        assert pool.processes[1].exitcode == 70
    finally:
        pool.kill()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_at_any_moment(seed, tmp_path) -> None:
    draw = random.Random(seed)
    how = draw.choice([signal.SIGKILL, signal.SIGSTOP])
    name = draw.choice(["1f1b", "zb-h1", "zbv", "interleaved"])
    victim, moment, pp = draw.randrange(WORLD), 2 * draw.random(), draw.choice([4, 4, 2])
    lose_rank(name, victim, how, moment, tmp_path, pp, WORLD)
