"""Images that travel between all ranks of a mesh with pipeline stages, beside one process."""

import pytest

from tests.sched.runtime.encoders.travelling import TravelSetting, run_travelling
from tests.sched.runtime.pool import Pool

TOLERANCE = 1e-6
SOME = (
    TravelSetting("1f1b", 2),
    TravelSetting("zbv", 4),
    TravelSetting("1f1b-alg2", 2, stage_merges=False),
    TravelSetting("zb-h1", 2, frozen="stages", stage_merges=True),
    TravelSetting("1f1b", 4, frozen="encoder"),
)


@pytest.mark.parametrize("setting", SOME, ids=str)
def test_a_step_trains_what_one_process_trains(pool: Pool, setting: TravelSetting) -> None:
    for rank, found in enumerate(pool.run(run_travelling, setting, 2)):
        assert max(found.values()) <= TOLERANCE, (rank, found)
