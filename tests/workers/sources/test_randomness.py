"""Samples' randomness is what it always was: the same bits, and the libraries' own seeding."""

import contextlib
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from counterpoise.workers.sources.randomness import (
    RandomnessWatch,
    entropy,
    global_randomness,
    held_generators,
    own_generators,
    run_seeded,
)

integers = st.integers(-(1 << 63), (1 << 64) - 1)


@given(integers, integers, st.text() | st.just("cat\udc80"))
def test_bits_are_the_hash_of_seed_epoch_and_key(seed: int, epoch: int, key: str) -> None:
    try:
        text = f"{seed}\x00{epoch}\x00{key}".encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a pair that is no byte of a file's name
        with pytest.raises(UnicodeEncodeError):
            entropy(seed, epoch, key)
        return
    hashed = hashlib.blake2b(text, digest_size=16).digest()
    assert entropy(seed, epoch, key) == int.from_bytes(hashed, "little")


def test_equal_numbers_of_other_types_have_bits_of_their_own() -> None:
    found = {entropy(seed, 0, "a") for seed in (1, True, 1.0)}  # type: ignore[arg-type]
    assert len(found) == 3


@pytest.mark.parametrize("is_own", [True, False])
def test_generators_are_in_the_state_that_their_own_seeding_leaves(is_own: bool) -> None:
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        for number in range(40):
            random.gauss(0, 1)  # keeps a second number, which seeding forgets
            bits = entropy(3, 1, str(number))
            if is_own:
                with own_generators(), global_randomness(3, 1, str(number)):
                    found = states()
            else:
                with global_randomness(3, 1, str(number)):
                    found = states()
            random.seed(bits)
            np.random.seed([bits >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)])
            torch.manual_seed(bits & 0x7FFFFFFFFFFFFFFF)
            assert found == states()
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        torch.set_rng_state(kept[2])


@pytest.fixture
def as_they_were() -> Iterator[None]:
    """Put the global generators back after a test."""
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(kept[0])
    np.random.set_state(kept[1])
    torch.set_rng_state(kept[2])


DRAWS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "random": random.random,
    "gauss": lambda: random.gauss(0, 1),
    "numpy": np.random.random,
    "normal": lambda: float(np.random.normal()),
    "torch": lambda: float(torch.rand(())),
    "much of numpy": lambda: np.random.random(312).tolist(),  # a whole turn of its state
}


@pytest.mark.usefixtures("as_they_were")
@given(st.lists(st.lists(st.sampled_from([*DRAWS])), max_size=8), st.booleans(), st.booleans())
def test_samples_draw_the_same_whoever_drew_before_them(
    microbatches: list[list[str]], in_worker: bool, is_seeded: bool
) -> None:
    def draw(name: str, place: str) -> object:
        return DRAWS[name](), DRAWS[name](), place

    def load(number: int) -> list[object]:
        places = [(name, f"{number} {n}") for n, name in enumerate(microbatches[number])]
        return [run_seeded(0, 1, place, draw, name, place) for name, place in places]

    wanted = [load(number) for number in range(len(microbatches))]
    with own_generators() if in_worker else contextlib.nullcontext():
        if is_seeded:  # as a worker_init_fn may
            np.random.seed(3)
            random.seed(3)
            np.random.normal()
        watch, before = RandomnessWatch(), (random.getstate(), torch.get_rng_state().tolist())
        assert [watch.run(partial(load, n)) for n in range(len(microbatches))] == wanted
        after = (random.getstate(), torch.get_rng_state().tolist())
        assert in_worker or after == before


@pytest.mark.usefixtures("as_they_were")
@pytest.mark.parametrize("in_worker", [False, True])
def test_only_the_first_microbatch_that_draws_is_loaded_twice(in_worker: bool) -> None:
    done = Counter[int]()

    def load(number: int) -> float:
        done[number] += 1
        return random.random() if number >= 4 else 0.0

    def load_all(first: int) -> None:
        for number in range(first, first + 3):
            run_seeded(0, 0, f"{number}", load, number)
        if first == 6:
            raise KeyError(first)

    watch = RandomnessWatch()
    with own_generators() if in_worker else contextlib.nullcontext():
        for first in range(0, 12, 3):
            with contextlib.suppress(KeyError):
                watch.run(partial(load_all, first))
            with global_randomness(0, 0, f"batch {first}"):
                random.random()  # as a collate_fn does
    assert done == Counter(range(12)) + Counter([3, 4, 5])


@pytest.mark.usefixtures("as_they_were")
def test_an_error_after_a_draw_is_the_seeded_samples_error() -> None:
    def fail() -> None:
        raise ValueError(random.random())

    def error_of(action: Callable[[], None]) -> str:
        with pytest.raises(ValueError, match="0") as found:
            run_seeded(0, 0, "a", action)
        return str(found.value)

    wanted = error_of(fail)
    with own_generators():
        assert RandomnessWatch().run(lambda: error_of(fail)) == wanted


def states() -> tuple[object, ...]:
    """Return the state of each global generator, as plain values."""
    numpys = [np.asarray(each).tolist() for each in np.random.get_state()]
    return random.getstate(), numpys, torch.get_rng_state().tolist(), torch.initial_seed()


class Holds:
    """Holds what it is given."""

    def __init__(self, **held: object) -> None:
        self.__dict__.update(held)


@pytest.mark.parametrize(
    ("thing", "names"),
    [
        (Holds(rng=np.random.default_rng(0)), ["rng"]),
        (Holds(rng=np.random.RandomState(0)), ["rng"]),
        (Holds(data=Holds(transform=Holds(g=torch.Generator()))), ["data.transform.g"]),
        (Holds(transforms=[len, Holds(r=random.Random(0))]), ["transforms[1].r"]),
        (Holds(numbers=np.random, make=random.Random, seed=7), []),
        ([1, 2, 3], []),
    ],
)
def test_generators_that_a_data_set_holds_are_found(thing: object, names: list[str]) -> None:
    assert held_generators(thing) == names
