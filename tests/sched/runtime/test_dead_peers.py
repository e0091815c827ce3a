"""A dead or stopped peer: every other rank says who waits for whom, and ends with an error."""

import os
import random
import re
import signal
import socket
import time
from pathlib import Path

import pytest
from torch.distributed.device_mesh import init_device_mesh

from counterpoise.sched import schedule
from counterpoise.sched.runtime import Pipeline
from tests.sched.runtime.cases import loader_step, mean_loss
from tests.sched.runtime.models import HIDDEN, make_batches, make_stages
from tests.sched.runtime.pool import WORLD, Pool

DEADLINE_S = 4.0
# Of a rank that waits: its pass, what it waits for with the microbatch, and of which rank.
WAITS = re.compile(r"rank \d at \S+ waits since \d+ s for \d[A-Z]+\d+ of rank \d")
AT_THE_END = re.compile(r"rank \d has run all passes of step \d+, and waits for other ranks")


def train_for_ever(rank: int, name: str, folder: str) -> None:
    """Run steps until a peer is lost; leave a file in the folder after the first."""
    mesh = init_device_mesh("cpu", (1, WORLD), mesh_dim_names=("dp", "pp"))
    program = schedule(name, ranks=WORLD, microbatches=8)
    stages = make_stages(program.stages)
    pipe = Pipeline(
        mesh,
        schedule=name,
        stages={s: stages[s].float() for s in program.stages_of(rank)},
        hidden=HIDDEN,
        loss=mean_loss,
        deadline_s=DEADLINE_S,
    )
    batches = make_batches(8, equal=False)
    while True:
        pipe.step(loader_step(batches, 100))
        Path(folder, str(rank)).touch()


def lose(name: str, victim: int, how: signal.Signals, after_s: float, folder: Path) -> None:
    """Start a pipeline, kill or stop one rank, and check what the others say."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        pool = Pool(probe.getsockname()[1])
    try:
        for pipe in pool.pipes:
            pipe.send((train_for_ever, (name, str(folder))))
        while len(list(folder.iterdir())) < WORLD:
            pool.processes[victim].join(0.1)
            assert not any(pipe.poll() for pipe in pool.pipes), "a rank failed at the start"
        # Any moment of a step.
        pool.processes[victim].join(after_s)
        pid = pool.processes[victim].pid
        assert pid is not None
        os.kill(pid, how)
        lost_at = time.monotonic()
        for rank, pipe in enumerate(pool.pipes):
            if rank == victim:
                continue
            assert pipe.poll(DEADLINE_S + 30), f"rank {rank} hangs"
            fine, text = pipe.recv()
            assert not fine
            assert WAITS.search(text) or AT_THE_END.search(text), f"rank {rank}: {text}"
        print(f"{time.monotonic() - lost_at:.1f} s until all others had said why")
        for rank, pipe in enumerate(pool.pipes):
            if rank != victim:
                pipe.send(None)
                pool.processes[rank].join(30)
                assert pool.processes[rank].exitcode not in (0, None)
    finally:
        for process in pool.processes:
            process.kill()


@pytest.mark.parametrize(
    ("victim", "how"), [(0, signal.SIGKILL), (2, signal.SIGSTOP)], ids=["killed", "stopped"]
)
def test_all_others_say_who_waits_for_whom(victim, how, tmp_path) -> None:
    lose("1f1b", victim, how, 0.5, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_at_any_moment(seed, tmp_path) -> None:
    draw = random.Random(seed)
    how = draw.choice([signal.SIGKILL, signal.SIGSTOP])
    name = draw.choice(["1f1b", "zb-h1", "zbv", "interleaved"])
    lose(name, draw.randrange(WORLD), how, 2 * draw.random(), tmp_path)
