"""The index of a file: what its samples are called, and where their parts are; kept beside it."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from .cache_files import Arrays, DamagedFileError, Stamp, log_damaged, read_or_remove, write_arrays

WORTH_KEEPING = 8  # samples
Integers = np.ndarray[Any, np.dtype[np.int64]]
TYPES = {
    **dict.fromkeys(("names", "facts"), np.dtype(np.uint8)),
    **dict.fromkeys(("name_ends", "places", "place_ends"), np.dtype(np.int64)),
}


@dataclass(frozen=True)
class FileIndex:
    """The samples of one file. Arrays, not objects: a large set of files is kept in memory.

    `names` holds all names, one after the other, as UTF-8; name i ends at `name_ends[i]`. Sample
    i's rows of `places`, one for each of its parts, end at `place_ends[i]`. `facts` are JSON-able.
    """

    names: bytes
    name_ends: Integers
    places: Integers
    place_ends: Integers
    facts: Mapping[str, Any]

    @classmethod
    def build(
        cls,
        names: Sequence[bytes],
        places: Sequence[Sequence[int]],
        counts: Iterable[int],
        **facts: Any,
    ) -> Self:
        """Return the index of samples of those names; counts: the places of each."""
        return cls(
            names=b"".join(names),
            name_ends=np.cumsum([len(name) for name in names], dtype=np.int64),
            places=np.array(places or np.empty((0, 4)), np.int64, ndmin=2),
            place_ends=np.cumsum([*counts], dtype=np.int64),
            facts=facts,
        )

    @classmethod
    def load_or_build(
        cls,
        path: Path,
        stamp: Stamp,
        make: Callable[[], Self],
        report: Callable[[DamagedFileError], None] = log_damaged,
    ) -> Self:
        """Return the index kept at a path with that stamp of its file, else a new one.

        Of a file with few samples none is kept: it is read sooner than a kept file, and a million
        tiny files stay without a million others. A kept file that is damaged is reported and made
        again; one that cannot be written is no error.
        """
        index = read_or_remove(path, stamp, cls.from_arrays, "index of this file", report)
        if index is None:
            index = make()
            if len(index) >= WORTH_KEEPING:
                write_arrays(path, stamp, index.to_arrays())
        return index

    def to_arrays(self) -> Arrays:
        """Return what is written to a kept file."""
        facts = np.frombuffer(json.dumps(self.facts).encode(), np.uint8)
        names = np.frombuffer(self.names, np.uint8)
        ends = {"name_ends": self.name_ends, "place_ends": self.place_ends}
        return {"names": names, "places": self.places, "facts": facts, **ends}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self | None:
        """Return the index in a kept file; None where it holds something else."""
        if {name: array.dtype for name, array in arrays.items()} != TYPES:
            return None
        facts = json.loads(arrays["facts"].tobytes())
        return cls(**{**arrays, "names": arrays["names"].tobytes(), "facts": facts})

    def __len__(self) -> int:
        return len(self.name_ends)

    def name(self, row: int) -> str:
        """Return a sample's name, which may be empty."""
        start = self.name_ends[row - 1] if row else 0
        return self.names[start : self.name_ends[row]].decode()

    def find_places(self, row: int) -> list[list[int]]:
        """Return the places of a sample's parts."""
        start = self.place_ends[row - 1] if row else 0
        places: list[list[int]] = self.places[start : self.place_ends[row]].tolist()
        return places
