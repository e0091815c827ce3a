"""numpy's global generator is seeded and put back as numpy's own functions do it, only sooner."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.random.mtrand import get_bit_generator, set_bit_generator

from counterpoise.workers.sources.numpy_generator import NumpyGenerator

BITS = 0x0123456789ABCDEF_0011223344556677


@pytest.fixture(autouse=True)
def _leave_generators() -> Iterator[None]:
    kept = random.getstate(), np.random.get_state(), get_bit_generator()
    yield
    set_bit_generator(kept[2])
    np.random.set_state(kept[1])
    random.setstate(kept[0])


class ByFunctions:
    """What numpy's own functions do."""

    def seed(self, bits: int) -> None:
        np.random.seed([bits >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)])

    def keep(self) -> Any:
        return np.random.get_state()

    def put_back(self, kept: Any) -> None:
        np.random.set_state(kept)


def state() -> list[Any]:
    _, words, *rest = np.random.get_state()
    return [np.asarray(words).tolist(), *rest]


DRAWS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "a number": lambda: np.random.rand(),
    "all words": lambda: np.random.bytes(4 * 624),
    "a normal number": lambda: np.random.standard_normal(),
    "two normal numbers": lambda: np.random.standard_normal(2),
    "its seed": lambda: np.random.seed(7),
    "a shuffle": lambda: np.random.shuffle(np.arange(9)),
    "another generator": lambda: set_bit_generator(np.random.MT19937(3)),
}


def run(generator: NumpyGenerator | ByFunctions, seed: int) -> list[Any]:
    """Let samples and their surroundings draw, in an order of the seed; return all states."""
    draw = random.Random(seed)
    set_bit_generator(np.random.MT19937(seed))
    np.random.seed(seed)
    seen: list[Any] = []
    kept: list[Any] = []
    for _ in range(30):
        turn = draw.choice(["seed", "keep", "put back", "draw", "draw"])
        if turn == "seed":
            bits = draw.getrandbits(draw.choice([128, 128, 128, 90, 20]))
            random.seed(bits)
            generator.seed(bits)
        elif turn == "keep":
            kept.append(generator.keep())
        elif turn == "put back" and kept:
            generator.put_back(kept.pop())
        else:
            DRAWS[draw.choice([*DRAWS])]()
        seen.append(state())
    return seen


@pytest.mark.parametrize(
    "seeds", [range(40), pytest.param(range(40, 2000), marks=pytest.mark.long)]
)
def test_states_are_those_of_numpys_functions(seeds: range) -> None:
    generator = NumpyGenerator()
    for seed in seeds:
        assert run(generator, seed) == run(ByFunctions(), seed)


@pytest.mark.parametrize("missing", ["_keeps_normal", "_seeded_words"])
def test_what_is_not_found_is_left_to_numpys_functions(missing: str) -> None:
    generator = NumpyGenerator()
    setattr(generator, missing, None)
    for seed in range(5):
        assert run(generator, seed) == run(ByFunctions(), seed)


def test_nothing_is_made_of_numbers_while_no_normal_number_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or else it would be as slow as numpy's functions."""
    generator = NumpyGenerator()
    np.random.seed(1)
    generator.keep()
    for name in ("seed", "get_state", "set_state"):
        monkeypatch.delattr(np.random, name)
    kept = generator.keep()
    random.seed(BITS)
    generator.seed(BITS)
    first = np.random.rand()
    generator.put_back(kept)
    monkeypatch.undo()
    assert np.random.rand() == np.random.RandomState(1).rand()
    words = [BITS >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)]
    assert first == np.random.RandomState(words).rand()


def test_functions_taken_from_numpy_before_draw_the_same() -> None:
    taken = np.random.rand
    generator = NumpyGenerator()
    random.seed(BITS)
    generator.seed(BITS)
    first = taken()
    generator.seed(BITS + (1 << 127))
    random.seed(BITS)
    generator.seed(BITS)
    assert taken() == first


@pytest.mark.filterwarnings("ignore:get_state and legacy")
def test_another_kind_of_generator_is_left_to_numpys_functions() -> None:
    drawn = []
    for generator in (NumpyGenerator(), ByFunctions()):
        set_bit_generator(np.random.PCG64(1))
        kept = generator.keep()
        generator.seed(BITS)
        drawn.append(np.random.rand())
        generator.put_back(kept)
        drawn.append(np.random.rand())
    assert drawn[:2] == drawn[2:]
    assert drawn[0] != drawn[1]


def test_to_find_a_generator_changes_nothing() -> None:
    before = random.getstate(), state()
    generator = NumpyGenerator()
    generator.find()
    assert (random.getstate(), state()) == before
    random.seed(BITS)
    generator.seed(BITS)
    found = state()
    ByFunctions().seed(BITS)
    assert found == state()
