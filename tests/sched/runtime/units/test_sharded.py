"""Stages of units that FSDP2 divides over the language model's replicas."""

import pytest

from tests.sched.runtime.pool import Pool
from tests.sched.runtime.units.processes import UnitSetting, run_units

pytestmark = pytest.mark.slow

TOLERANCE = 1e-5
# Two replicas and two encoders; with input and weight gradients apart, and of a part of a stage.
SOME = (
    UnitSetting("zb-h1", (2, 1), (2, 1), (2,), sharded="all"),
    UnitSetting("1f1b", (2, 1), (1, 2), (4,), (0,), sharded="a part"),
)


@pytest.mark.parametrize("setting", SOME, ids=str)
def test_training_equals_one_process(pool: Pool, setting: UnitSetting) -> None:
    for rank, found in enumerate(pool.run(run_units, setting, 2)):
        assert max(found.values()) <= TOLERANCE, (rank, found)
