"""The samples that a run is to leave out, by their keys."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from ...workers.mixture.order import epoch_order
from ...workers.sources.interface import Source

SHOWN = 3


@dataclass(slots=True)
class SkippedSamples:
    """The ordinals of samples by their keys: holes of a plan that is otherwise as it was.

    Keys are those of StepInfo.keys: of a mixture each names a sample of one pass.
    """

    source: Source
    keys: frozenset[str]
    seed: int
    shuffle: bool
    # Of so many samples, their indexes; of an epoch, their ordinals.
    _indexes: tuple[int, list[int]] = field(default=(-1, []), init=False)
    _ordinals: tuple[int, int, tuple[int, ...]] = field(default=(-1, -1, ()), init=False)

    def __call__(self, epoch: int) -> tuple[int, ...]:
        """Return the ordinals of an epoch's, ascending; ValueError for a key that no sample has."""
        count = len(self.source)
        if self._ordinals[:2] != (epoch, count):
            order = epoch_order(self.source, self.seed, epoch, self.shuffle)
            places = np.flatnonzero(np.isin(order, self._indexes_among(count)))
            self._ordinals = epoch, count, tuple(places.tolist())
        return self._ordinals[2]

    def _indexes_among(self, count: int) -> list[int]:
        if self._indexes[0] != count:
            names = {index: str(self.source.key(index)) for index in range(count)}
            skipped = {index: name for index, name in names.items() if name in self.keys}
            if missing := sorted(self.keys - {*skipped.values()}):
                raise ValueError(
                    f"skip_keys has {', '.join(map(repr, missing[:SHOWN]))}, and no sample has "
                    "such a key: give those of StepInfo.keys, as counterpoise doctor --step names "
                    "them"
                )
            self._indexes = count, list(skipped)
        return self._indexes[1]


def checked_keys(keys: Iterable[str]) -> frozenset[str]:
    """Return the keys of samples to leave out; TypeError for what is no list of texts."""
    texts = frozenset(keys)
    if isinstance(keys, str) or not all(isinstance(key, str) for key in texts):
        raise TypeError(f"skip_keys is {keys!r:.80}: give a list of samples' keys, as texts")
    return texts
