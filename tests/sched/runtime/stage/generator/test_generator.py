"""A decoder behind the last stage, on its ranks or on ranks of its own, beside one process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.sched.runtime.pool import Pool
from tests.sched.runtime.stage.generator.processes import Drawing, run_drawing, run_resumed

pytestmark = pytest.mark.slow

TOLERANCE = 1e-5
COLOCATED = (
    Drawing("1f1b", (2, 2)),
    Drawing("zbv", (1, 2), frozen=("decoder",)),
    Drawing("1f1b-alg2", (1, 4)),
)
MORE_COLOCATED = (
    Drawing("interleaved", (2, 2), frozen=("stages",)),
    Drawing("zb-h1", (4, 1), options=(("recompute", True),)),
)
DISAGGREGATED = (
    Drawing("1f1b", (1, 2), (2, 1)),
    Drawing("zb-h1", (1, 3), (1, 1), frozen=("decoder",)),
    Drawing("1f1b-alg2", (1, 2), (1, 1), (1, 1)),
    Drawing("interleaved", (1, 2), encoder=(2, 1)),
    Drawing("1f1b", (1, 2), (1, 1, 2)),
)
MORE_DISAGGREGATED = (
    Drawing("1f1b", (1, 1), (1, 1)),
    Drawing("zbv", (1, 2), (1, 1), (1, 1), frozen=("encoders", "stages")),
    Drawing("1f1b", (2, 1), (1, 1), (1, 1)),
    Drawing("zb-h1", (1, 1, 2), (2, 1), frozen=("decoder",)),
    Drawing("1f1b", (1, 1), (1, 1), (1, 1, 2)),
    Drawing("1f1b", (1, 1, 2), (1, 1, 2)),
)


def also_long(usual: Sequence[Drawing], more: Sequence[Drawing]) -> list[Any]:
    return [*usual, *(pytest.param(each, marks=pytest.mark.long) for each in more)]


def assert_equal(pool: Pool, setting: Drawing, steps: int) -> None:
    for rank, found in enumerate(pool.run(run_drawing, setting, steps)):
        assert max(found.values()) <= TOLERANCE, (rank, found)


@pytest.mark.parametrize("setting", also_long(COLOCATED, MORE_COLOCATED), ids=str)
def test_on_the_last_stages_ranks_it_trains_as_one_process(pool: Pool, setting: Drawing) -> None:
    assert_equal(pool, setting, 2)


@pytest.mark.parametrize("setting", also_long(DISAGGREGATED, MORE_DISAGGREGATED), ids=str)
def test_on_ranks_of_its_own_it_trains_as_one_process(pool: Pool, setting: Drawing) -> None:
    assert_equal(pool, setting, 2)


def test_a_job_goes_on_with_its_decoder_on_other_ranks(pool: Pool, tmp_path: Path) -> None:
    for rank, found in enumerate(pool.run(run_resumed, tmp_path)):
        assert max(found.values()) <= TOLERANCE, (rank, found)
