"""Seeds numpy's global generator, and puts it back, in a tenth of the time that numpy takes.

`np.random.seed` takes 12 us, `get_state` and `set_state` 50 us each, for they make a Python number
of every word; to copy the words takes a fifth of one. numpy says where a generator's state is
(`BitGenerator.ctypes`), but not how it is laid out: that is found out, by comparison with what
`get_state` returns, and where anything is otherwise, numpy's functions do all.

- The state: 624 words, and which of them is next.
- Beside it a normal number may be kept, the second of two that are drawn together. A copy would
  miss it, so only generators without are copied. The byte that tells is read in the object.
- `random` is the same generator, MT19937, and `random.seed` makes of an integer the words that
  `np.random.seed` makes of its four parts, in a third of the time: they are read in that object.
"""

import ctypes
import random
import struct
import sys
from typing import Any

import numpy as np
from numpy.random.mtrand import get_bit_generator

_WORDS = 624
_WORDS_BYTES = 4 * _WORDS
_POSITION = struct.Struct("=i")
_STATE_BYTES = _WORDS_BYTES + _POSITION.size
_NONE_LEFT = _POSITION.pack(_WORDS)  # as after seeding


class NumpyGenerator:
    """numpy's global generator; one instance a process."""

    def __init__(self) -> None:
        self._keeps_normal = _find_flag(getattr(np.random.get_state, "__self__", None))
        self._seeded_words = _find_words(getattr(random.getrandbits, "__self__", None))
        self._bit_generator: Any = None
        self._state: memoryview | None = None

    def find(self) -> None:
        """Find out where the state is, which takes a millisecond; else the first sample does it."""
        self._copyable()

    def seed(self, bits: int) -> None:
        """Seed with 128 bits, with which `random` has just been seeded."""
        state, words = self._copyable(), self._seeded_words
        # Of fewer than four parts random and numpy make different words.
        if state is None or words is None or not bits >> 96:
            np.random.seed(np.frombuffer(bits.to_bytes(16, "little"), "<u4"))
            return
        with self._bit_generator.lock:
            state[:_WORDS_BYTES] = words
            state[_WORDS_BYTES:] = _NONE_LEFT

    def keep(self) -> Any:
        """Return the state, for `put_back`."""
        state = self._copyable()
        return np.random.get_state() if state is None else state.tobytes()

    def put_back(self, kept: Any) -> None:
        """Set the state to what it was."""
        state = self._copyable()
        if not isinstance(kept, bytes):
            np.random.set_state(kept)
        elif state is None:
            words = np.frombuffer(kept, np.uint32, _WORDS)
            (position,) = _POSITION.unpack(kept[_WORDS_BYTES:])
            np.random.set_state(("MT19937", words, position, 0, 0.0))
        else:
            with self._bit_generator.lock:
                state[:] = kept

    def _copyable(self) -> memoryview | None:
        """Return the memory of the state; None if it is not known, or a normal number is kept."""
        current = get_bit_generator()
        if current is not self._bit_generator:
            self._bit_generator, self._state = current, _find_state(current)
        return None if self._keeps_normal is None or self._keeps_normal[0] else self._state


def _find_state(bit_generator: Any) -> memoryview | None:
    if type(bit_generator) is not np.random.MT19937:
        return None
    found = _memory(bit_generator.ctypes.state_address, _STATE_BYTES)
    state = bit_generator.state["state"]
    expected = state["key"].astype("=u4").tobytes() + _POSITION.pack(state["pos"])
    return found if found.tobytes() == expected else None


def _find_flag(generator: object) -> memoryview | None:
    """Return the byte of a RandomState that is 1 while it keeps a normal number, to be read."""
    if not _is_readable(generator, np.random.RandomState):
        return None
    other = np.random.RandomState(0)
    whole = _memory(id(other), object.__sizeof__(other))
    other.standard_normal()
    number: Any = other.get_state()
    kept = whole.tobytes()
    other.standard_normal()
    after = whole.tobytes()
    begin = kept.find(struct.pack("=d", number[4]))
    end = begin + 8 if begin >= 0 else 0
    changed = [k for k, byte in enumerate(kept) if byte != after[k] and not begin <= k < end]
    if len(changed) != 1 or (kept[changed[0]], after[changed[0]]) != (1, 0):
        return None
    return _memory(id(generator) + changed[0], 1).toreadonly()


def _find_words(generator: object) -> memoryview | None:
    """Return the words of an instance of random.Random, to be read."""
    if not _is_readable(generator, random.Random):
        return None
    known: Any = generator
    words = struct.pack(f"={_WORDS}I", *known.getstate()[1][:_WORDS])
    whole = _memory(id(generator), object.__sizeof__(generator))
    begin = whole.tobytes().find(words)
    return whole[begin : begin + _WORDS_BYTES].toreadonly() if begin >= 0 else None


def _is_readable(instance: object, wanted: type) -> bool:
    """Return whether an object is of a type, and its identity an address."""
    return type(instance) is wanted and sys.implementation.name == "cpython"


def _memory(address: int, nbytes: int) -> memoryview:
    """Return the memory of an object that lives as long: the global generators always do."""
    return memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast("B")
