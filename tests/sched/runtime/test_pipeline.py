"""Pipelines over real processes: gradients, loss, weights and norms are those of one process."""

import pytest

from counterpoise.sched import schedule
from tests.sched.runtime.cases import Case, run_case

TOLERANCE = 1e-5


def assert_equal(case: Case, pool) -> None:
    program = schedule(
        case.name, ranks=case.ranks, microbatches=case.microbatches or 2 * case.ranks
    )
    for rank, found in enumerate(pool.run(run_case, case)):
        errors = (found.loss, found.gradients, found.weights, found.norm)
        assert max(errors) <= TOLERANCE, f"{case} rank {rank}: {found}"
        computed = [str(item) for item in program.ranks[rank % case.ranks]]
        assert [p for p in found.passes if p in set(computed)] == computed


@pytest.mark.parametrize("name", ["1f1b", "zbv", "1f1b-alg2"])
def test_gradients_are_those_of_one_process(pool, name) -> None:
    assert_equal(Case(name, 4, equal=False), pool)
