"""The checker is neither lax nor blind: sound programs run and match, rejected ones cannot run."""

import random
from itertools import islice

import pytest

from counterpoise.sched import problems
from counterpoise.sched.transforms.lowering import post_ahead
from tests.sched.runtime.execution.random_programs import random_program, rejected_programs
from tests.sched.runtime.loopback import Deadlock
from tests.sched.runtime.models import (
    copies,
    make_batches,
    make_stages,
    reference,
    run_program,
    worst_error,
)


@pytest.mark.parametrize(
    "block", [0, 1, 2, *(pytest.param(n, marks=pytest.mark.long) for n in range(3, 10))]
)
def test_sound_programs_run_to_the_end_and_match(block) -> None:
    for seed in range(20 * block, 20 * block + 20):
        draw = random.Random(seed)
        program = random_program(draw)
        assert not problems(program), f"seed {seed}"
        stages = make_stages(program.stages, seed)
        expected = copies(stages)
        batches = make_batches(program.microbatches, equal=False, seed=seed)
        wanted = reference(expected, batches)
        assert run_program(program, stages, batches, choose=draw.choice) == pytest.approx(wanted)
        assert worst_error(stages, expected) < 1e-10, f"seed {seed}"


def test_programs_rejected_as_deadlock_cannot_run() -> None:
    for seed, program in islice(rejected_programs(), 50):
        stages = make_stages(program.stages, seed)
        batches = make_batches(program.microbatches, equal=False, seed=seed)
        with pytest.raises(Deadlock):
            run_program(post_ahead(program, 1), stages, batches, wait_sends=True)
