"""Pipelines over real processes: gradients, loss, weights and norms are those of one process."""

from itertools import combinations, product

import pytest

from counterpoise.sched import schedule, schedules
from tests.sched.runtime.cases import Case, refuse_ddp, run_case
from tests.sched.runtime.models import FROZEN

TOLERANCE = 1e-5
NAMES = [known.name for known in schedules() if known.name != "own"]


def covering() -> list[Case]:
    """Return cases in which every two values of two factors occur together."""
    return [
        Case(name, (2, 4)[(at + nth) % 2], frozen, equal=bool((at + nth // 2) % 2))
        for at, name in enumerate(NAMES)
        for nth, frozen in enumerate(FROZEN)
    ]


def others() -> list[Case]:
    every = product(NAMES, (2, 4), FROZEN, (True, False))
    known = set(covering())
    return [case for values in every if (case := Case(*values)) not in known]


def assert_equal(case: Case, pool) -> None:
    count = case.microbatches or 2 * case.ranks
    program = schedule(case.name, ranks=case.ranks, microbatches=count)
    for rank, found in enumerate(pool.run(run_case, case)):
        errors = (found.loss, found.gradients, found.weights, found.norm)
        assert max(errors) <= TOLERANCE, f"{case} rank {rank}: {found}"
        wanted = [str(item) for item in program.ranks[rank % case.ranks]]
        assert [p for p in found.passes if p in set(wanted)] == wanted


def test_the_cases_cover_all_pairs_of_values() -> None:
    rows = [(c.name, c.ranks, c.frozen, c.equal) for c in covering()]
    values = (NAMES, (2, 4), list(FROZEN), (True, False))
    for a, b in combinations(range(4), 2):
        assert {(row[a], row[b]) for row in rows} == set(product(values[a], values[b]))


@pytest.mark.parametrize("case", covering(), ids=str)
def test_training_equals_one_process(pool, case) -> None:
    assert_equal(case, pool)


@pytest.mark.long
@pytest.mark.parametrize("case", others(), ids=str)
def test_training_equals_one_process_in_every_setting(pool, case) -> None:
    assert_equal(case, pool)


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "v-half"])
@pytest.mark.parametrize("frozen", ["nothing frozen", "frozen first"])
def test_stages_may_be_sharded_with_fsdp2(pool, name, frozen) -> None:
    case = Case(name, 2, frozen, equal=False, sharded=True)
    for found in pool.run(run_case, case):
        assert max(found.loss, found.gradients, found.weights, found.norm) <= TOLERANCE, found


@pytest.mark.parametrize("options", [{"recompute": True}, {"split": False}], ids=str)
def test_recomputation_and_whole_backwards_change_nothing(pool, options) -> None:
    assert_equal(Case("zbv", 4, equal=False, options=tuple(options.items())), pool)


def test_a_stage_in_ddp_is_refused_with_what_to_do(pool) -> None:
    for text in pool.run(refuse_ddp):
        assert "wrapped in DistributedDataParallel" in text
        assert "give the plain module" in text
