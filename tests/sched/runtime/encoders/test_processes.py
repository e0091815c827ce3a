"""Encoder passes over real processes: features and their gradients travel as messages."""

import pytest
import torch

from tests.sched.runtime.encoders.processes import Setting, run_setting
from tests.sched.runtime.encoders.test_gradients import filled
from tests.sched.runtime.pool import Pool

SETTINGS = [
    Setting("1f1b", width=2, layers=(1, 2)),
    Setting("zb-h1", width=4, layers=(1,), stage_merges=True),
    Setting("zbv", ranks=2, width=2, layers=(2, 1), frozen=(0,)),
    Setting("zb-h1", ranks=2, layers=(1, 2), options=(("recompute", True),)),
    Setting("interleaved", width=1, layers=(1, 1), frozen=(0, 1)),
    Setting("1f1b-alg2", ranks=2, layers=(1, 1), replicas=1, divided=True).in_gaps(),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: f"{s.name}-{s.ranks}x{s.width}")
def test_loss_gradients_and_weights_are_those_of_one_process(pool: Pool, setting: Setting) -> None:
    for found in pool.run(run_setting, setting):
        assert max(found.values()) <= 1e-5, found


def test_a_program_that_schedule_fill_writes_runs(pool: Pool) -> None:
    # Through 48 layers gradients are so small that single precision differs by 1e-5 and more. (The
    # loss is always in single precision.)
    dtype = torch.float64
    setting = Setting("filled", width=2, layers=(24,), text=str(filled(2)), dtype=dtype)
    for found in pool.run(run_setting, setting):
        assert max(found.values()) <= 1e-6, found
