"""A plain loader's workers end with a killed trainer at once, even in the midst of a sample."""

from pathlib import Path

import pytest

from tests.trainers import Trainer

TRAINER = """
import os, signal, sys
import numpy as np
import counterpoise as cp

class Samples:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == 8:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.write(1, b"stuck\\n")
            while True:
                signal.pause()
        return np.zeros((1000, index))

if __name__ == "__main__":
    list(cp.DataLoader(
        Samples(), batch_size=None, num_workers=2, multiprocessing_context=METHOD,
    ))
"""


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_killed_trainer_leaves_no_worker_that_loads_a_sample(tmp_path: Path, method: str) -> None:
    trainer = Trainer(tmp_path, TRAINER.replace("METHOD", repr(method)))
    assert trainer.process.stdout is not None
    assert trainer.process.stdout.readline() == "stuck\n"
    trainer.kill()
    trainer.assert_nothing_is_left()
