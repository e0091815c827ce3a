"""Seeds random generators from (seed, epoch, key) and nothing else.

Which worker decodes a sample, and when, must not change its augmentation. Transforms that accept
`rng` get a generator of their own; for plain datasets, which draw from the global generators of
`random`, numpy and torch, these are seeded around the call and put back afterwards.

To seed them takes longer than to load a small sample, and most data sets draw from none. So it is
watched whether the samples of a microbatch do: whether the generators' states are the same after
it. In a worker, where nothing else draws, that is told sooner by two generators of our own in the
same state: they give the same numbers then. The first microbatch in which a sample has drawn is
loaded once more, each sample seeded; so are all after it.
"""

import hashlib
import itertools
import random
import sys
import threading
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


def held_generators(owner: Any, name: str = "", depth: int = 3) -> list[str]:
    """Return the names of attributes that hold a generator of their own, such as "transform.rng".

    What is drawn from these depends on what the process has drawn before.
    """
    torch = sys.modules.get("torch")
    kinds = (random.Random, np.random.Generator, np.random.RandomState)
    if isinstance(owner, (*kinds, torch.Generator) if torch else kinds):
        return [name]
    if not depth or isinstance(owner, type | ModuleType):
        return []
    if type(owner) in (list, tuple):  # of a class of its own, to index may load samples
        inside = [(f"{name}[{n}]", held) for n, held in enumerate(owner[:64])]
    else:
        attributes = getattr(owner, "__dict__", {})
        inside = [(f"{name}.{key}".lstrip("."), held) for key, held in attributes.items()]
    lists = (held_generators(held, place, depth - 1) for place, held in inside)
    return list(itertools.chain.from_iterable(lists))


class RandomnessWatch:
    """Seeds the samples of a data set one by one only where one of them has drawn."""

    def __init__(self) -> None:
        """Begin with a data set of which nothing is known."""
        self.has_loaded = self._draws = False

    def run(self, action: Callable[[], T]) -> T:
        """Return action(), which loads samples, each within run_seeded.

        It may be done twice, the first time for nothing. A sample that reads the generators' state
        and draws nothing reads any.
        """
        self.has_loaded = True
        if self._draws:
            return action()
        before = None if _are_samples_own else _read_states()
        doubles = _make_doubles() if _are_samples_own else None
        _unseeded.here = True
        try:
            samples = action()
        finally:
            _unseeded.here = False
            if doubles is not None:
                self._draws = not _give_the_same(*doubles)
            elif before is not None and not _are_same(before, _read_states()):
                self._draws = True
                _set_states(before)
        return action() if self._draws else samples


class _Unseeded(threading.local):
    """Whether this thread watches samples instead of seeding them."""

    here = False


_unseeded = _Unseeded()
# Whether nothing in this process but samples draws from its global generators.
_are_samples_own = False
# Doubles of these, until they are seeded.
_idle_doubles: tuple[random.Random, np.random.MT19937] | None = None


@contextmanager
def own_generators() -> Iterator[None]:
    """Leave this process' global generators as samples leave them: nothing else draws, in a worker.

    To put them back after each sample costs three times the rest.
    """
    global _are_samples_own, _idle_doubles
    before, _are_samples_own, _idle_doubles = _are_samples_own, True, None
    try:
        yield
    finally:
        _are_samples_own = before


def run_seeded(seed: int, epoch: int, key: str, action: Callable[..., T], *arguments: Any) -> T:
    """Return action(*given), done within global_randomness; see RandomnessWatch."""
    if _unseeded.here:
        return action(*arguments)
    with global_randomness(seed, epoch, key):
        return action(*arguments)


@contextmanager
def global_randomness(seed: int, epoch: int, key: str) -> Iterator[None]:
    """Seed the global generators of `random`, numpy and (if imported) torch; restore them after.

    Within `own_generators` they are left as they are then.
    """
    global _idle_doubles
    before = None if _are_samples_own else _read_states()
    _idle_doubles = None
    _seed(entropy(seed, epoch, key))
    try:
        yield
    finally:
        if before is not None:
            _set_states(before)


def _read_states() -> tuple[Any, ...]:
    """Return the state of each global generator."""
    torch = sys.modules.get("torch")
    return random.getstate(), np.random.get_state(), torch and torch.get_rng_state()


def _make_doubles() -> tuple[random.Random, np.random.MT19937, Any]:
    """Return generators in the state of the global ones, after seeding those where need be."""
    global _idle_doubles
    if _idle_doubles is None:
        bits = entropy(0, 0, "doubles")
        _seed(bits)
        numpys: Any = np.random.MT19937()
        numpys.state = _numpy_generator().state
        _idle_doubles = random.Random(bits), numpys
    torch = sys.modules.get("torch")
    return *_idle_doubles, torch and torch.get_rng_state()


def _are_same(before: tuple[Any, ...], after: tuple[Any, ...]) -> bool:
    """Return whether nothing was drawn between two states."""
    numpys, torchs = (before[1], after[1]), (before[2], after[2])
    return (
        before[0] == after[0]
        and numpys[0][2:] == numpys[1][2:]
        and np.array_equal(numpys[0][1], numpys[1][1])
        and (torchs[0] is None or torchs[0].equal(torchs[1]))
    )


def _give_the_same(randoms: random.Random, numpys: np.random.MT19937, torchs: Any) -> bool:
    """Return whether the global generators' next numbers are those of the doubles."""
    if torchs is not None and not torchs.equal(sys.modules["torch"].get_rng_state()):
        return False
    if _numpy_generator().random_raw() != numpys.random_raw():
        return False
    return random.getrandbits(32) == randoms.getrandbits(32)


def _numpy_generator() -> Any:
    """Return what is behind numpy's functions: a caller may have put another there."""
    return np.random.get_bit_generator()  # type: ignore[attr-defined]


def _set_states(states: tuple[Any, ...]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    if states[2] is not None:
        sys.modules["torch"].set_rng_state(states[2])


def _seed(bits: int) -> None:
    random.seed(bits)
    np.random.seed(np.frombuffer(bits.to_bytes(16, "little"), "<u4"))
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(bits & 0x7FFFFFFFFFFFFFFF)
