"""Units with tensor parallelism: each rank is several processes, in lanes of their own."""

import pytest

from tests.sched.runtime.pool import Pool
from tests.sched.runtime.units.processes import UnitSetting, run_units

pytestmark = pytest.mark.slow

TOLERANCE = 1e-5
# On 4 processes: one rank of each unit; a schedule with input and weight gradients apart.
SOME = (
    UnitSetting("1f1b", (1, 1), (1, 1), (2,), tp=2),
    UnitSetting("zb-h1", (1, 1), (1, 1), (2, 2), (1,), tp=2),
)


@pytest.mark.parametrize("setting", SOME, ids=str)
def test_training_equals_one_process(pool: Pool, setting: UnitSetting) -> None:
    for rank, found in enumerate(pool.run(run_units, setting, 2)):
        assert max(found.values()) <= TOLERANCE, (rank, found)
