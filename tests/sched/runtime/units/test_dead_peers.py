"""A rank of a unit that is killed or stopped: all others, of both units, say why they end."""

import random
import re
import signal
from pathlib import Path

import pytest
import torch

from counterpoise.sched.runtime import Units
from tests.sched.runtime.encoders.models import make_model, make_samples
from tests.sched.runtime.encoders.processes import loader_step
from tests.sched.runtime.test_dead_peers import DEADLINE_S, lose
from tests.sched.runtime.units.processes import UnitSetting, make_pipe

pytestmark = pytest.mark.slow

ENDED = "ended with 70"
# Two ranks of the language model, then two encoders; and two replicas with one encoder of two.
ENCODERS_APART = UnitSetting("1f1b", (1, 2), (2, 1), (4,))
SHARED_ENCODER = UnitSetting("1f1b", (2, 1), (1, 2), (4,))
VOCABULARY = UnitSetting("1f1b-alg2", (1, 2), (2, 1), (2, 4))
# One rank of two processes, then two encoders, each of which is in both lanes; and the other way.
LANES = UnitSetting("1f1b", (1, 1, 2), (2, 1), (4,))
LANES_OF_ENCODERS = UnitSetting("1f1b", (1, 2), (1, 1, 2), (4,))


def train_for_ever(rank: int, setting: UnitSetting, folder: str) -> None:
    """Run steps until a peer is lost; leave a file in the folder after the first."""
    units, count = setting.units, setting.microbatches
    stages = units.backbone.pp
    model = make_model(setting.layers, stages, torch.float32, merges=False)
    at = units.rank_of(rank)
    pipe, _ = make_pipe(setting, model, at)
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
    every = [make_samples(count, r, torch.float32) for r in range(units.backbone.dp)]
    total = sum(len(s.ids) for samples in every for s in samples)
    given = [loader_step(every[r], total) for r in units.replicas(at)]
    # On a busy machine processes come to their first step at different times.
    pipe.deadline_s = 60.0
    while True:
        pipe.step(given if len(given) > 1 else given[0])
        pipe.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        Path(folder, str(rank)).touch()
        pipe.deadline_s = pipe._board._deadline_s = DEADLINE_S


def lose_process(
    setting: UnitSetting, victim: int, how: signal.Signals, draw: float, folder: Path
) -> None:
    """Lose one process of units, and check what the others say."""
    units = setting.units
    said = lose(train_for_ever, (setting,), victim, how, draw, folder, units.processes)
    for process, text in said:
        check_report(text, units, units.rank_of(process), units.rank_of(victim))


def check_report(text: str, units: Units, rank: int, victim: int) -> None:
    """The last line is the error: it leads from the rank to the one that is lost.

    Collectives inside of modules are torch's. Where a process waits in one, a broken connection
    ends its pass, or it is ended itself, when the others have given up.
    """
    error = text.strip().splitlines()[-1]
    if len(units.processes_of(rank)) > 1 and (error.startswith("in pass ") or error == ENDED):
        return
    lost = [f"rank {victim} (at|is at) [^;]*not heard of since"]
    if len(units.processes_of(victim)) > 1:
        lost.append(f"rank {victim}: \\S+ of rank {victim} raised RuntimeError")
    assert error.startswith("counterpoise.sched.runtime.execution.drive.PipelineStalledError"), text
    assert re.search(f"step \\d+: rank {rank} (at|is at)", error), error
    assert any(re.search(words, error) for words in lost), error


@pytest.mark.parametrize(
    ("setting", "victim", "how"),
    [
        pytest.param(ENCODERS_APART, 3, signal.SIGKILL, id="an encoder is killed"),
        pytest.param(
            ENCODERS_APART, 0, signal.SIGSTOP, id="the first stage", marks=pytest.mark.long
        ),
        pytest.param(SHARED_ENCODER, 1, signal.SIGKILL, id="one replica", marks=pytest.mark.long),
        pytest.param(
            SHARED_ENCODER, 3, signal.SIGSTOP, id="inside an encoder", marks=pytest.mark.long
        ),
        pytest.param(LANES, 2, signal.SIGKILL, id="of two lanes", marks=pytest.mark.long),
        pytest.param(LANES, 1, signal.SIGKILL, id="of the second lane", marks=pytest.mark.long),
        pytest.param(
            LANES_OF_ENCODERS, 0, signal.SIGKILL, id="the store's host", marks=pytest.mark.long
        ),
        pytest.param(
            LANES_OF_ENCODERS, 3, signal.SIGKILL, id="a lane of encoders", marks=pytest.mark.long
        ),
    ],
)
def test_all_ranks_of_both_units_say_who_is_lost(
    setting: UnitSetting, victim: int, how: signal.Signals, tmp_path: Path
) -> None:
    lose_process(setting, victim, how, 0.5, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(32))
def test_at_any_moment(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    apart = [ENCODERS_APART, SHARED_ENCODER, VOCABULARY]
    setting = draw.choice(apart if seed < 24 else [LANES, LANES_OF_ENCODERS])
    how = draw.choice([signal.SIGKILL, signal.SIGSTOP])
    lose_process(setting, draw.randrange(setting.units.processes), how, 2 * draw.random(), tmp_path)
