"""The fuzzer's targets, fed a fixed number of inputs by chance: no atheris needed."""

import random

import pytest

from tests.security.fuzz_targets import FRAMES, TARGETS
from tests.security.hostile import Mutator, Wired

INPUTS = 2000


def mutated(seeds, number, framed, at=0):
    """Give inputs: seeds as they are, then with bytes changed, or fields where they are frames."""
    yield from seeds
    source = random.Random(at)
    mutator = Mutator([Wired(b"", seed[1:]) for seed in seeds], at) if framed else None
    for _ in range(number):
        if mutator is not None:
            yield source.randbytes(1) + mutator.frame()[0]
            continue
        data = bytearray(source.choice(seeds))
        for _ in range(source.randrange(1, 5)):
            place = source.randrange(len(data) + 1)
            data[place : place + source.randrange(3)] = source.randbytes(source.randrange(3))
        yield bytes(data)


@pytest.mark.parametrize("name", [*TARGETS])
def test_a_target_stands_mutated_inputs(name):
    target = TARGETS[name]()
    for data in mutated(target.seeds(), INPUTS, name in FRAMES):
        target(data)


@pytest.mark.parametrize("name", [*TARGETS])
@pytest.mark.parametrize("data", [b"", b"\0", b"\xff" * 300, bytes(3000)])
def test_a_target_stands_what_is_nothing(name, data):
    TARGETS[name]()(data)
