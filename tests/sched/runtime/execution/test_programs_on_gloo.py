"""What `check` accepts runs between processes, and what it rejects as deadlock does not."""

import random
from itertools import islice

import pytest

from counterpoise.sched import Program
from counterpoise.sched.transforms.lowering import post_ahead
from tests.sched.runtime.execution.processes import Outcome, run_alone, run_raw
from tests.sched.runtime.execution.random_programs import random_program, rejected_programs
from tests.sched.runtime.pool import WORLD, Pool

DEADLINE_S = 2.0


def assert_equal(program: Program, found: list[Outcome]) -> None:
    wanted = run_alone(program)
    assert sum(one.loss for one in found) == pytest.approx(wanted.loss, rel=1e-5)
    gradients = {stage: value for one in found for stage, value in one.gradients.items()}
    assert gradients == pytest.approx(wanted.gradients, rel=1e-5)


@pytest.mark.parametrize(
    "block", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, 20))]
)
def test_sound_programs_run_and_match(pool: Pool, block: int) -> None:
    for seed in range(10 * block, 10 * block + 10):
        program = random_program(random.Random(seed), WORLD)
        assert_equal(program, pool.run(run_raw, str(program), 60.0, False))


@pytest.mark.parametrize(
    "number", [0, 1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 50))]
)
def test_programs_rejected_as_deadlock_do_not_run(number: int) -> None:
    ((_, program),) = islice(rejected_programs(WORLD), number, number + 1)
    # Transfers that never end break the groups, so every program has processes of its own.
    pool = Pool()
    try:
        for pipe in pool.pipes:
            pipe.send((run_raw, (str(post_ahead(program, 1)), DEADLINE_S, True)))
        answers = [pipe.recv() for pipe in pool.pipes]
    finally:
        pool.kill()
    errors = [text for fine, text in answers if not fine]
    assert errors
    assert all("PeerLostError" in text or "KeyError" in text for text in errors), errors
