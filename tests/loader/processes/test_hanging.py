"""With timeout=, a loader whose workers cannot be ended by SIGTERM ends with an error all the same.

One worker is stopped, as by a debugger or a disk that is gone; the other ignores SIGTERM.
"""

import os
import signal
from pathlib import Path

import pytest

from tests.trainers import Trainer

LIMIT_S = 100.0
SCRIPT = """
import os, signal, torch, counterpoise as cp
from counterpoise.loader.plain import own_workers

own_workers.END_S = 0.1  # what workers that do end may take

def hang():
    if torch.utils.data.get_worker_info().id == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()

class ByIndex(torch.utils.data.Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        hang()

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        hang()
        yield 0

PLAIN = {"batch_size": 4}
BALANCED = {"balance": "fixed", "cost": {"tokens": [1] * 40}, "shuffle": True}
PACKED = {"balance": cp.Balance(budgets={"n": 9}, accumulate=1), "cost": lambda _: {"n": 1}}
data, how = {
    "plain": (ByIndex(), PLAIN),
    "stays": (ByIndex(), {**PLAIN, "persistent_workers": True}),
    "stream": (Stream(), PLAIN),
    "balanced": (ByIndex(), BALANCED),
    "packed stream": (Stream(), PACKED),
}["KIND"]
for batch in cp.DataLoader(data, num_workers=2, collate_fn=list, timeout=0.5, **how):
    pass
"""
KINDS = {
    "plain": "RuntimeError: DataLoader timed out after 0.5 seconds",
    "stays": "RuntimeError: DataLoader timed out after 0.5 seconds",
    "stream": "RuntimeError: DataLoader timed out after 0.5 seconds",
    "balanced": "TimeoutError: no batch within 0.5 s",
    "packed stream": "RuntimeError: DataLoader timed out after 0.5 seconds",
}
# The others end as these do, by torch's iterator.
FEW = ("plain", "balanced")


@pytest.mark.parametrize(
    "kind", [k if k in FEW else pytest.param(k, marks=pytest.mark.long) for k in KINDS]
)
def test_the_error_comes_and_nothing_is_left(kind: str, tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, SCRIPT.replace("KIND", kind))
    try:
        _, errors = trainer.process.communicate(timeout=LIMIT_S)
        assert trainer.process.returncode == 1
        assert KINDS[kind] in errors
        trainer.assert_nothing_is_left()
    finally:
        for left in trainer.survivors():
            os.kill(left, signal.SIGKILL)
