"""Encoder passes over real processes: features and their gradients travel as messages."""

import pytest

from tests.sched.runtime.encoders.processes import Setting, run_setting
from tests.sched.runtime.encoders.test_gradients import filled
from tests.sched.runtime.pool import Pool

SETTINGS = [
    Setting("1f1b", width=2),
    Setting("zb-h1", width=4, layers=1),
    Setting("zbv", ranks=2, width=2),
    Setting("1f1b", ranks=2, frozen=True),
    Setting("interleaved", width=1, layers=1, frozen=True),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: f"{s.name}-{s.ranks}x{s.width}")
def test_loss_and_gradients_are_those_of_one_process(pool: Pool, setting: Setting) -> None:
    for found in pool.run(run_setting, setting):
        assert max(found.values()) <= 1e-5, found


def test_a_program_that_schedule_fill_writes_runs(pool: Pool) -> None:
    program = filled(2)
    setting = Setting("filled", width=2, layers=24, text=str(program))
    for found in pool.run(run_setting, setting):
        assert max(found.values()) <= 1e-5, found
