"""Encoders in the bubbles of any schedule, with replicas over all ranks, beside one process."""

from itertools import product
from typing import Any, NamedTuple

import pytest

from tests.sched.runtime.encoders.processes import Setting, run_setting
from tests.sched.runtime.pool import Pool

pytestmark = pytest.mark.slow

TOLERANCE = 1e-5
NAMES = ("1f1b", "interleaved", "zbv", "1f1b-alg2")
# The encoders' layers on a rank, and which of them are frozen.
ENCODERS = (((2,), ()), ((2,), (0,)), ((1, 2), ()), ((1, 1), (0, 1)), ((2, 1), (1,)))
# Pipeline ranks, ranks of an encoder pipeline, and replicas, on up to four processes.
LAYOUTS = ((4, 1, 1), (4, 2, 1), (4, 4, 1), (2, 1, 2), (2, 2, 2), (2, 1, 1), (1, 1, 2), (1, 1, 1))


class Values(NamedTuple):
    """A value of each factor."""

    name: str
    encoders: tuple[tuple[int, ...], tuple[int, ...]]
    layout: tuple[int, int, int]

    def setting(self) -> Setting:
        layers, frozen = self.encoders
        ranks, width, replicas = self.layout
        return Setting(self.name, ranks, width, layers, frozen, replicas).in_gaps()


EVERY = [Values(*values) for values in product(NAMES, ENCODERS, LAYOUTS)]


def covering() -> list[Values]:
    """Return settings in which every value of every factor occurs, greedily."""
    left = {value for values in EVERY for value in enumerate(values)}
    found = []
    while left:
        best = max(EVERY, key=lambda v: len(left & {*enumerate(v)}))
        left -= {*enumerate(best)}
        found.append(best)
    return found


SOME = covering()
WIDE = [Values(*v) for v in product(NAMES, ENCODERS, ((4, 1, 2), (4, 2, 2)))]


@pytest.fixture(scope="module")
def eight():
    made = Pool(8)
    yield made
    made.close()


def assert_equal(pool: Pool, values: Values, steps: int) -> None:
    for rank, found in enumerate(pool.run(run_setting, values.setting(), steps)):
        assert max(found.values()) <= TOLERANCE, (rank, found)


def ids(values: Any) -> str:
    return str(tuple(values))


def test_the_settings_cover_all_values() -> None:
    for factor in range(3):
        assert {v[factor] for v in SOME} == {v[factor] for v in EVERY}


INSIDE = Setting("zbv", 4, 2, (1, 2), inside=True)
WIDE_INSIDE = [
    Setting(name, ranks, width, layers, replicas=replicas, options=options, inside=True)
    for name in NAMES
    for layers in ((2,), (1, 2))
    for ranks, width, replicas in ((4, 1, 1), (4, 2, 1), (2, 1, 2))
    for options in ((), (("recompute", True),))
]


def test_training_with_passes_inside_others_equals_one_process(pool: Pool) -> None:
    for rank, found in enumerate(pool.run(run_setting, INSIDE.in_gaps(), 2)):
        assert max(found.values()) <= TOLERANCE, (rank, found)


@pytest.mark.long
@pytest.mark.parametrize("setting", WIDE_INSIDE, ids=str)
def test_passes_inside_others_in_every_setting(pool: Pool, setting: Setting) -> None:
    for rank, found in enumerate(pool.run(run_setting, setting.in_gaps(), 2)):
        assert max(found.values()) <= TOLERANCE, (rank, found)


@pytest.mark.parametrize("values", SOME, ids=ids)
def test_training_equals_one_process(pool, values) -> None:
    assert_equal(pool, values, 1)


@pytest.mark.long
@pytest.mark.parametrize("values", EVERY, ids=ids)
def test_training_equals_one_process_in_every_setting(pool, values) -> None:
    assert_equal(pool, values, 2)


@pytest.mark.long
@pytest.mark.parametrize("values", WIDE, ids=ids)
def test_training_on_eight_processes_equals_one(eight, values) -> None:
    assert_equal(eight, values, 2)


# The first stage merges by itself; layers are computed again; the embedding is divided, too.
SPECIAL = [
    Setting("zb-h1", width=4, layers=(1,), stage_merges=True),
    Setting("zb-h1", ranks=2, layers=(1, 2), options=(("recompute", True),)),
    Setting("1f1b-alg2", ranks=2, layers=(1, 1), replicas=1, divided=True).in_gaps(),
]


@pytest.mark.parametrize("setting", SPECIAL, ids=lambda s: f"{s.name}-{s.ranks}x{s.width}")
def test_what_pipelines_are_given_beside_trains_as_one_process(pool, setting: Setting) -> None:
    for rank, found in enumerate(pool.run(run_setting, setting)):
        assert max(found.values()) <= TOLERANCE, (rank, found)


# Ranks of two processes each, which divide stages and encoder layers.
LANES = Setting("zbv", 2, 2, (1, 2), tp=2)
WIDE_LANES = (
    Setting("1f1b", 1, 1, (2, 1), (1,), tp=2),
    Setting("1f1b-alg2", 2, 1, (1, 2), (0,), tp=2),
    Setting("zb-h1", 4, 2, (1,), tp=2),
    Setting("1f1b", 2, 1, (2,), options=(("recompute", True),), tp=4),
)


def test_ranks_of_several_processes_train_as_one_process(pool: Pool) -> None:
    for rank, found in enumerate(pool.run(run_setting, LANES.in_gaps(), 2)):
        assert max(found.values()) <= TOLERANCE, (rank, found)


@pytest.mark.long
@pytest.mark.parametrize("setting", WIDE_LANES, ids=lambda setting: setting.name)
def test_more_ranks_of_several_processes_train_as_one(eight: Pool, setting: Setting) -> None:
    for rank, found in enumerate(eight.run(run_setting, setting.in_gaps(), 2)):
        assert max(found.values()) <= TOLERANCE, (rank, found)
