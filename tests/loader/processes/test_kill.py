"""A trainer that ends in any way, at any moment, leaves no process, socket or shared memory.

`make faults KILLS=n` kills trainers and other processes within epochs (tests/faults/one_host.py).
"""

import random
import subprocess
from pathlib import Path

import pytest

from tests.loader.processes import kill_trainer
from tests.trainers import Trainer

pytestmark = pytest.mark.slow

# A fork server sees that its trainer has ended when it has imported torch, which takes seconds on a
# loaded machine.
ENDS_WITHIN_S = 60.0


def start(folder: Path, end: str = "") -> Trainer:
    """Start a trainer that ends itself in a manner of kill_trainer, or does not."""
    lines = [
        "if __name__ == '__main__':",
        "    from tests.loader.processes import kill_trainer",
        f"    kill_trainer.main({end!r})",
    ]
    return Trainer(folder, "\n".join(lines))


@pytest.mark.parametrize(("seed", "kills"), [(11, 2), pytest.param(12, 20, marks=pytest.mark.long)])
def test_killed_at_any_moment(tmp_path: Path, seed: int, kills: int) -> None:
    moments = random.Random(seed)
    for _ in range(kills):
        trainer = start(tmp_path)
        with pytest.raises(subprocess.TimeoutExpired):
            trainer.process.wait(moments.uniform(0, 3))
        trainer.kill()
        trainer.assert_nothing_is_left(ENDS_WITHIN_S)


# ways to end that are the interpreter's own, like one that stays
ALIKE = ("an exception", "os._exit", "SIGINT")


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(end, marks=pytest.mark.long) if end in ALIKE else end
        for end in kill_trainer.ENDS
    ],
)
def test_whichever_way_it_ends(tmp_path: Path, end: str) -> None:
    trainer = start(tmp_path, end)
    _, errors = trainer.process.communicate(timeout=120)
    assert trainer.process.returncode == kill_trainer.ENDS[end][-1], errors
    trainer.assert_nothing_is_left(ENDS_WITHIN_S)
