"""Seeds random generators from (seed, epoch, key) and nothing else.

Which worker decodes a sample, and when, must not change its augmentation. Transforms that accept
`rng` get a generator of their own; for plain datasets, which draw from the global generators of
`random`, numpy and torch, these are seeded around the call and put back afterwards.

To seed them takes longer than to load a small sample, and most data sets draw from none. So in a
worker, where nothing else draws, it is watched at first whether a sample does: two generators of
our own are seeded as the global ones are, and as long as nobody draws both give the same numbers.
The first sample that has drawn is loaded once more, seeded; so are all after it.
"""

import hashlib
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


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


def held_generators(thing: Any, name: str = "", depth: int = 3) -> list[str]:
    """Return the names of attributes that hold a generator of their own, such as "transform.rng".

    What is drawn from these depends on what the process has drawn before.
    """
    torch = sys.modules.get("torch")
    kinds = (random.Random, np.random.Generator, np.random.RandomState)
    if isinstance(thing, (*kinds, torch.Generator) if torch else kinds):
        return [name]
    if not depth or isinstance(thing, type | ModuleType):
        return []
    if type(thing) in (list, tuple):  # of a class of its own, to index may load samples
        inside = [(f"{name}[{n}]", each) for n, each in enumerate(thing[:64])]
    else:
        held = getattr(thing, "__dict__", {})
        inside = [(f"{name}.{key}".lstrip("."), each) for key, each in held.items()]
    return [found for place, each in inside for found in held_generators(each, place, depth - 1)]


class _OwnGenerators:
    """The global generators of a process in which samples alone draw from them."""

    def __init__(self) -> None:
        self._is_drawn_from = False
        # Seeded as the global ones, at the first sample: worker_init_fn may have seeded those.
        self._doubles: tuple[random.Random, np.random.MT19937] | None = None

    def seed(self, bits: int) -> None:
        """Seed them; nothing is known of what is drawn before the next sample."""
        _seed(bits)
        self._doubles = None

    def run(self, bits: int, action: Callable[..., T], given: tuple[Any, ...]) -> T:
        """Do what run_seeded does."""
        if not self._is_drawn_from:
            self._doubles = doubles = self._doubles or _doubles()
            _seed_torch(bits)  # takes no longer than to watch it
            try:
                found = action(*given)
            except Exception:
                if _give_the_same(*doubles):
                    raise
            else:
                if _give_the_same(*doubles):
                    return found
            self._is_drawn_from = True
        _seed(bits)
        return action(*given)


def _doubles() -> tuple[random.Random, np.random.MT19937]:
    """Seed the global generators of `random` and numpy; return others in the same state."""
    bits = entropy(0, 0, "doubles")
    _seed(bits)
    numpys: Any = np.random.MT19937()
    numpys.state = _numpys_own().state
    return random.Random(bits), numpys


def _give_the_same(randoms: random.Random, numpys: np.random.MT19937) -> bool:
    """Return whether the global generators' next numbers are those of the doubles."""
    if _numpys_own().random_raw() != numpys.random_raw():
        return False
    return random.getrandbits(32) == randoms.getrandbits(32)


def _numpys_own() -> Any:
    """Return what is behind numpy's functions: a caller may have put another there."""
    return np.random.get_bit_generator()  # type: ignore[attr-defined]


# None where this process draws from its global generators for other things, too.
_own: _OwnGenerators | None = None


@contextmanager
def own_generators() -> Iterator[None]:
    """Leave this process' global generators as samples leave them: nothing else draws, in a worker.

    To put them back after each sample costs three times the rest.
    """
    global _own
    before, _own = _own, _OwnGenerators()
    try:
        yield
    finally:
        _own = before


def run_seeded(seed: int, epoch: int, key: str, action: Callable[..., T], *given: Any) -> T:
    """Return action(*given), done within global_randomness.

    Within `own_generators` an action that draws may be done twice, the first time for nothing; one
    that reads the generators' state and draws nothing reads any.
    """
    if _own is not None:
        return _own.run(entropy(seed, epoch, key), action, given)
    with global_randomness(seed, epoch, key):
        return action(*given)


@contextmanager
def global_randomness(seed: int, epoch: int, key: str) -> Iterator[None]:
    """Seed the global generators of `random`, numpy and (if imported) torch; restore them after.

    Within `own_generators` they are left as they are then.
    """
    bits = entropy(seed, epoch, key)
    if _own is not None:
        _own.seed(bits)
        yield
        return
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
    _seed_torch(bits)


def _seed_torch(bits: int) -> None:
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(bits & 0x7FFFFFFFFFFFFFFF)
