"""The checker is neither lax nor blind: sound programs run and match, rejected ones cannot run."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest

from counterpoise.sched import Pass, Program, problems
from counterpoise.sched.transforms.lowering import post_ahead
from tests.sched.runtime.loopback import Deadlock
from tests.sched.runtime.models import (
    copies,
    make_batches,
    make_stages,
    reference,
    run_program,
    worst_error,
)


def random_program(draw: random.Random) -> Program:
    """Cut one random order of all passes into ranks: whatever the placement, it can be run."""
    ranks, microbatches = draw.randint(1, 4), draw.randint(1, 5)
    placement = [*range(ranks), *(draw.randrange(ranks) for _ in range(draw.randint(0, 3)))]
    draw.shuffle(placement)
    stages = range(len(placement))
    split = {(s, m): draw.random() < 0.5 for s in stages for m in range(microbatches)}
    left = {Pass(s, "F", m) for s in stages for m in range(microbatches)}
    for (stage, m), yes in split.items():
        left |= {Pass(stage, kind, m) for kind in ("IW" if yes else "B")}
    rows: list[list[Pass]] = [[] for _ in range(ranks)]
    while left:
        ready = sorted(item for item in left if not needs(item, split) & left)
        item = draw.choice(ready)
        left.remove(item)
        rows[placement[item.stage]].append(item)
    return Program(tuple(map(tuple, rows)), tuple(placement), microbatches, name="random")


def needs(item: Pass, split) -> set[Pass]:
    """Return what a pass waits for, written down apart from the kinds' table."""
    stage, m = item.stage, item.microbatch
    if item.kind == "F":
        return {Pass(stage - 1, "F", m)}
    if item.kind == "W":
        return {Pass(stage, "I", m)}
    after = Pass(stage + 1, "I" if split.get((stage + 1, m)) else "B", m)
    return {Pass(stage, "F", m), after}


def swapped(program: Program, draw: random.Random) -> Program:
    """Return the program with two passes of a rank in each other's place."""
    rows = [list(row) for row in program.ranks]
    row = draw.choice([row for row in rows if len(row) > 1])
    a, b = draw.sample(range(len(row)), 2)
    row[a], row[b] = row[b], row[a]
    return replace(program, ranks=tuple(map(tuple, rows)))


def rejected_programs() -> Iterator[tuple[int, Program]]:
    """Yield seeds and programs that `check` rejects for a cycle and for nothing else."""
    for seed in range(2000):
        draw = random.Random(seed)
        program = swapped(random_program(draw), draw)
        if [problem.proof for problem in problems(program)] == ["cycle"]:
            yield seed, program


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
