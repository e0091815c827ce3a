"""Samples' randomness is what it always was: the same bits, and the libraries' own seeding."""

import hashlib
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.workers.sources.randomness import entropy, global_randomness, own_generators

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


def states() -> tuple[object, ...]:
    """Return the state of each global generator, as plain values."""
    numpys = [np.asarray(each).tolist() for each in np.random.get_state()]
    return random.getstate(), numpys, torch.get_rng_state().tolist(), torch.initial_seed()
