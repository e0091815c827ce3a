"""Programs run on all ranks of one process: gradients and loss are those of one process."""

import random

import pytest

from counterpoise.sched import schedule, schedules
from tests.sched.runtime.models import (
    FROZEN,
    copies,
    freeze,
    make_batches,
    make_stages,
    reference,
    run_program,
    worst_error,
)

PLAIN = [s.name for s in schedules() if not s.name.endswith(("-alg1", "-alg2", "-naive", "laced"))]


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("frozen", FROZEN)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", PLAIN)
def test_gradients_and_loss_are_those_of_one_process(name, ranks, frozen, equal) -> None:
    program = schedule(name, ranks=ranks, microbatches=2 * ranks)
    stages = make_stages(program.stages)
    freeze(stages, frozen)
    expected = copies(stages)
    batches = make_batches(program.microbatches, equal=equal)
    wanted = reference(expected, batches)
    draw = random.Random(ranks)
    assert run_program(program, stages, batches, choose=draw.choice) == pytest.approx(wanted, 1e-12)
    assert worst_error(stages, expected) < 1e-10


@pytest.mark.parametrize("options", [{"recompute": True}, {"split": False}])
@pytest.mark.parametrize("name", ["1f1b", "zbv"])
def test_recomputation_and_whole_backwards_change_nothing(name, options) -> None:
    program = schedule(name, ranks=2, microbatches=4)
    stages = make_stages(program.stages)
    expected = copies(stages)
    batches = make_batches(4, equal=False)
    wanted = reference(expected, batches)
    assert run_program(program, stages, batches, **options) == pytest.approx(wanted, 1e-12)
    assert worst_error(stages, expected) < 1e-10
