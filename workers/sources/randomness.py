"""Seeds random generators from (seed, epoch, key) and nothing else.

Which worker decodes a sample, and when, must not change its augmentation. Transforms that accept
`rng` get a generator of their own; for plain datasets, which draw from the global generators of
`random`, numpy and torch, these are seeded around the call and put back afterwards.
"""

import functools
import hashlib
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np


def entropy(seed: int, epoch: int, key: str) -> int:
    """Return 128 bits that are the same on every machine and differ wherever an argument does.

    >>> entropy(0, 0, "a") == entropy(0, 0, "a") != entropy(0, 1, "a")
    True
    """
    hashed = _hashed(seed, epoch).copy()
    hashed.update(f"{key}".encode("utf-8", "surrogateescape"))
    return int.from_bytes(hashed.digest(), "little")


# Samples that are loaded in turns may be of two epochs.
@functools.lru_cache(4, typed=True)
def _hashed(seed: int, epoch: int) -> Any:
    """Return the hash of what samples of an epoch have in common, to be copied."""
    return hashlib.blake2b(f"{seed}\x00{epoch}\x00".encode(), digest_size=16)


def generator(seed: int, epoch: int, key: str) -> np.random.Generator:
    """Return a sample's own generator (PCG64 seeded through SeedSequence)."""
    return np.random.default_rng(np.random.SeedSequence(entropy(seed, epoch, key)))


# Whether the global generators of this process are for samples alone.
_are_samples_own = False


@contextmanager
def own_generators() -> Iterator[None]:
    """Leave this process' global generators as samples leave them: nothing else draws, in a worker.

    To put them back after each sample costs three times the rest.
    """
    global _are_samples_own
    before, _are_samples_own = _are_samples_own, True
    try:
        yield
    finally:
        _are_samples_own = before


def global_randomness(seed: int, epoch: int, key: str) -> AbstractContextManager[None]:
    """Seed the global generators of `random`, numpy and (if imported) torch; restore them after.

    Within `own_generators` they are seeded at once, and left as they are after the sample.
    """
    bits = entropy(seed, epoch, key)
    if not _are_samples_own:
        return _put_back_after(bits)
    _seed(bits)
    return _NOTHING_AFTER


# It costs a fifth of a generator's context.
_NOTHING_AFTER = nullcontext()


@contextmanager
def _put_back_after(bits: int) -> Iterator[None]:
    torch = sys.modules.get("torch")
    kept = random.getstate(), np.random.get_state(), torch and torch.get_rng_state()
    _seed(bits)
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        if torch:
            torch.set_rng_state(kept[2])


def _seed(bits: int) -> None:
    _seed_random(bits)
    np.random.seed(np.frombuffer(bits.to_bytes(16, "little"), "<u4"))
    if sys.modules.get("torch"):
        _of_torch().manual_seed(bits & 0x7FFFFFFFFFFFFFFF)


# The generator behind the functions of `random`.
_RANDOM: Any = random.getrandbits.__self__  # type: ignore[attr-defined]
_SEED_WORDS: Callable[[int], None] = super(random.Random, _RANDOM).seed


def _seed_random(bits: int) -> None:
    """Do what `random.seed` does of an integer, without its questions about other types."""
    _SEED_WORDS(bits)
    _RANDOM.gauss_next = None


@functools.cache
def _of_torch() -> Any:
    return sys.modules["torch"].default_generator
