"""Encoders and language model on ranks of their own, beside one process."""

from collections.abc import Iterator
from itertools import product

import pytest

from tests.sched.runtime.pool import Pool
from tests.sched.runtime.units.processes import UnitSetting, run_units

pytestmark = pytest.mark.slow

TOLERANCE = 1e-5
NAMES = ("1f1b", "interleaved", "zbv", "1f1b-alg2")
# Layers of each encoder, and which of them are frozen.
ENCODERS = (((4,), ()), ((2,), (0,)), ((2, 4), ()), ((2, 2), (0, 1)), ((4, 2), (1,)))
# Replicas and pipeline ranks of the language model, and of the encoders, by processes in all.
LAYOUTS = {
    4: (((1, 2), (2, 1)), ((1, 2), (1, 2)), ((2, 1), (2, 1)), ((1, 1), (3, 1)), ((1, 1), (1, 1))),
    5: (((2, 1), (3, 1)), ((1, 4), (1, 1)), ((1, 1), (4, 1)), ((1, 2), (3, 1)), ((2, 2), (1, 1))),
    6: (((2, 1), (2, 2)), ((2, 2), (2, 1)), ((1, 4), (2, 1)), ((2, 1), (4, 1)), ((1, 2), (4, 1))),
    7: (((2, 2), (3, 1)), ((1, 4), (3, 1))),
    8: (((2, 2), (2, 2)), ((2, 2), (4, 1)), ((1, 4), (4, 1)), ((1, 4), (2, 2))),
}
# Every value of each factor occurs, and unequal replicas in both directions.
SOME = (
    UnitSetting("1f1b", (1, 2), (2, 1), (4,)),
    UnitSetting("zbv", (1, 2), (1, 2), (2, 4)),
    UnitSetting("1f1b-alg2", (2, 1), (2, 1), (4, 2), (1,)),
    UnitSetting("interleaved", (1, 2), (2, 1), (2, 2), (0, 1)),
    UnitSetting("1f1b", (1, 1), (3, 1), (2,), (0,)),
)
UNEVEN = UnitSetting("zbv", (2, 1), (3, 1), (2, 4))


def assert_equal(pool: Pool, setting: UnitSetting, steps: int) -> None:
    for rank, found in enumerate(pool.run(run_units, setting, steps)):
        assert max(found.values()) <= TOLERANCE, (rank, found)


@pytest.fixture(scope="module")
def five() -> Iterator[Pool]:
    made = Pool(5)
    yield made
    made.close()


@pytest.fixture(scope="module")
def eight() -> Iterator[dict[int, Pool]]:
    """Pools of other sizes, each started when it is first used."""
    made: dict[int, Pool] = {}
    yield made
    for pool in made.values():
        pool.close()


@pytest.mark.parametrize("setting", SOME, ids=str)
def test_training_equals_one_process(pool: Pool, setting: UnitSetting) -> None:
    assert_equal(pool, setting, 1)


def test_replicas_that_do_not_divide_each_other_train_as_one_process(five: Pool) -> None:
    assert_equal(five, UNEVEN, 2)


EVERY = [
    (processes, UnitSetting(name, *layout, *encoders))
    for processes, layouts in LAYOUTS.items()
    for name, layout, encoders in product(NAMES, layouts, ENCODERS)
]


@pytest.mark.long
@pytest.mark.parametrize(("processes", "setting"), EVERY, ids=str)
def test_training_equals_one_process_in_every_setting(
    eight: dict[int, Pool], processes: int, setting: UnitSetting
) -> None:
    if processes not in eight:
        eight[processes] = Pool(processes)
    assert_equal(eight[processes], setting, 2)
