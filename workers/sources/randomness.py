"""Seeds random generators from (seed, epoch, key) and nothing else.

Which worker decodes a sample, and when, must not change its augmentation. Transforms that accept
`rng` get a generator of their own; for plain datasets, which draw from the global generators of
`random`, numpy and torch, these are seeded around the call and put back afterwards.
"""

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np


def entropy(seed: int, epoch: int, key: str) -> int:
    """Return 128 bits that are the same on every machine and differ wherever an argument does.

    >>> entropy(0, 0, "a") == entropy(0, 0, "a") != entropy(0, 1, "a")
    True
    """
    text = f"{seed}\x00{epoch}\x00{key}".encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")


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
    return nullcontext()


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
    random.seed(bits)
    np.random.seed(np.frombuffer(bits.to_bytes(16, "little"), "<u4"))
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(bits & 0x7FFFFFFFFFFFFFFF)
