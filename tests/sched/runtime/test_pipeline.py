"""Pipelines over real processes: gradients, loss, weights and norms are those of one process."""

from itertools import combinations, product
from typing import Any

import pytest

from counterpoise.sched import schedule, schedules
from counterpoise.sched.runtime.job import start
from counterpoise.sched.runtime.links.process_groups import make_groups
from tests.sched.runtime.cases import (
    Case,
    Found,
    refuse_ddp,
    refuse_unlike_replicas,
    run_case,
    send_spread_out_gradients,
)
from tests.sched.runtime.kept_groups import keep_groups
from tests.sched.runtime.low_precision import run_low
from tests.sched.runtime.models import FROZEN, HIDDEN

pytestmark = pytest.mark.slow

TOLERANCE = 1e-5
LOW_LONG = ("1f1b", "v-half-alg1")
NAMES = [known.name for known in schedules() if known.name != "own"]


def covering() -> list[Case]:
    """Return a case a schedule, in which every two values of the other factors occur together.

    Loopbacks run every schedule with all of them (`execution/test_walk.py`).
    """
    frozen = [*FROZEN]
    return [
        # What a step leaves behind does not depend on the schedule: every other one runs a second.
        Case(name, (2, 4)[at % 2], frozen[at // 2 % 4], bool(at // 8 % 2), steps=1 + at // 2 % 2)
        for at, name in enumerate(NAMES)
    ]


def others() -> list[Case]:
    every = product(NAMES, (2, 4), FROZEN, (True, False))
    known = {case for case in covering() if case.steps == 2}
    return [case for values in every if (case := Case(*values)) not in known]


def run_with_own_groups(rank: int, case: Case) -> Found:
    """Run a case on groups that nobody keeps."""
    vars(start)["make_groups"] = make_groups
    try:
        return run_case(rank, case)
    finally:
        keep_groups()


def assert_equal(case: Case, pool) -> None:
    count = case.microbatches or 2 * case.ranks
    program = schedule(case.name, ranks=case.ranks, microbatches=count)
    for rank, found in enumerate(pool.run(run_case, case)):
        errors = (found.loss, found.gradients, found.weights, found.norm)
        assert max(errors) <= TOLERANCE, f"{case} rank {rank}: {found}"
        wanted = [str(item) for item in program.ranks[rank % case.ranks]]
        assert [p for p in found.passes if p in set(wanted)] == wanted


def test_the_cases_cover_all_pairs_of_values_with_every_schedule() -> None:
    rows = [(c.ranks, c.frozen, c.equal) for c in covering()]
    values = ((2, 4), list(FROZEN), (True, False))
    for a, b in combinations(range(3), 2):
        assert {(row[a], row[b]) for row in rows} == set(product(values[a], values[b]))
    assert {c.name for c in covering()} == {*NAMES}


@pytest.mark.parametrize("case", covering(), ids=str)
def test_training_equals_one_process(pool, case) -> None:
    assert_equal(case, pool)


@pytest.mark.long
@pytest.mark.parametrize("case", others(), ids=str)
def test_training_equals_one_process_in_every_setting(pool, case) -> None:
    assert_equal(case, pool)


def low_cases() -> list[Any]:
    """Return a case for every sixth schedule, and all others marked `long`."""
    every = list(product(NAMES, (2, 4), FROZEN, (True, False)))
    some = {
        (name, (4, 2)[at % 2], list(FROZEN)[at % 3 == 2], at % 4 < 2)
        for at, name in enumerate(NAMES[1::6])
    }
    return [
        pytest.param(Case(*values), marks=() if values in some else pytest.mark.long)
        for values in every
    ]


def assert_precise(case: Case, pool, *, autocast: bool) -> None:
    for found in pool.run(run_low, case, autocast):
        assert found.pop("loss") < 1e-2, case
        assert max(found.values()) <= 1.5, (case, found)


@pytest.mark.parametrize("case", low_cases(), ids=str)
def test_errors_in_bf16_are_at_most_half_more_than_those_of_one_process(pool, case) -> None:
    assert_precise(case, pool, autocast=False)


@pytest.mark.parametrize(
    "name", ["zbv", "1f1b-alg2", *(pytest.param(n, marks=pytest.mark.long) for n in LOW_LONG)]
)
def test_errors_under_autocast_are_at_most_half_more_than_those_of_one_process(pool, name) -> None:
    assert_precise(Case(name, 4, equal=False), pool, autocast=True)


def sharded_cases() -> list[Any]:
    """Return each schedule with one of two settings, and with the other one marked `long`."""
    names = ("1f1b", "zb-h1", "v-half", "1f1b-alg2", "v-half-alg1")
    return [
        pytest.param(name, frozen, marks=pytest.mark.long if (at + nth) % 2 else ())
        for at, name in enumerate(names)
        for nth, frozen in enumerate(("nothing frozen", "frozen first"))
    ]


@pytest.mark.parametrize(("name", "frozen"), sharded_cases())
def test_stages_may_be_sharded_with_fsdp2(pool, name, frozen) -> None:
    case = Case(name, 2, frozen, equal=False, sharded=True)
    for found in pool.run(run_case, case):
        assert max(found.loss, found.gradients, found.weights, found.norm) <= TOLERANCE, found


def test_fsdp2_may_divide_a_part_of_a_stage(pool) -> None:
    case = Case("zb-h1", 2, equal=False, sharded=True, blocks=True)
    for found in pool.run(run_case, case):
        assert max(found.loss, found.gradients, found.weights, found.norm) <= TOLERANCE, found


@pytest.mark.parametrize(
    ("name", "sharded"),
    [("zb-h1", False), ("1f1b-alg2", False), ("v-half-naive", False), ("1f1b", True)],
)
def test_gradients_of_several_steps_add_up_and_evaluating_leaves_them(pool, name, sharded) -> None:
    case = Case(name, 2, equal=False, sharded=sharded, adds_up=True)
    for found in pool.run(run_case, case):
        assert max(found.loss, found.gradients, found.weights, found.norm) <= TOLERANCE, found


def test_a_pipeline_makes_its_groups_and_gives_them_up(pool) -> None:
    for found in pool.run(run_with_own_groups, Case("interleaved", 2)):
        assert max(found.loss, found.gradients, found.weights, found.norm) <= TOLERANCE, found


@pytest.mark.parametrize("options", [{"recompute": True}, {"split": False}], ids=str)
def test_recomputation_and_whole_backwards_change_nothing(pool, options) -> None:
    assert_equal(Case("zbv", 4, equal=False, options=tuple(options.items())), pool)


def test_a_gradient_that_is_one_number_spread_out_is_sent_whole(pool) -> None:
    counts = (3, 1, 4, 1, 5, 9, 2, 6)
    found = pool.run(send_spread_out_gradients, counts)
    assert found == [sum(counts) * HIDDEN] * 4


def test_replicas_that_train_other_stages_are_refused_on_every_rank(pool) -> None:
    (text, *others) = pool.run(refuse_unlike_replicas)
    assert "data-parallel rank 1 has" in text
    assert "freeze and wrap modules alike" in text
    assert others == [text] * 3


def test_a_stage_in_ddp_is_refused_with_what_to_do(pool) -> None:
    for text in pool.run(refuse_ddp):
        assert "wrapped in DistributedDataParallel" in text
        assert "give the plain module" in text
