"""Gives a real sample to a microbatch that has none, in loops that cannot take an empty one.

It weighs nothing: no count has it, and scale_loss() makes its loss 0.
"""

from collections.abc import Collection, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ...workers.mixture.order import epoch_order
from ...workers.sources.interface import SampleError, Source
from ...workers.sources.labels import IGNORED
from ..step.errors import LoaderError

# After so many broken samples in a row nobody expects a good one.
TRIES = 100


@dataclass(slots=True)
class SpareSample:
    """Loads the first sample of a step that is not broken, in this process; the last one is kept.

    It follows from epoch and step alone, so that a resumed run has the same batches.
    ignores_labels: its labels become -100, for losses that are sums over labels.
    """

    source: Source
    seed: int
    shuffle: bool
    ignores_labels: bool = False
    _at: tuple[int, int] | None = field(default=None, init=False)
    _sample: Any = field(default=None, init=False, repr=False)

    def __call__(self, epoch: int, start: int, holes: Collection[int] = ()) -> Any:
        """Return a sample for the step that begins at an ordinal; LoaderError if there is none.

        holes: ordinals that are not tried, since workers may have died of them.
        """
        if self._at == (epoch, start):
            return self._sample
        order = epoch_order(self.source, self.seed, epoch, self.shuffle)
        for each in range(start, start + min(TRIES, len(order))):
            ordinal = each % len(order)
            if ordinal in holes:
                continue
            try:
                found = self.source.load(int(order[ordinal]), epoch, self.seed)
            except SampleError:
                continue
            self._sample, self._at = found, (epoch, start)
            return found
        raise LoaderError(
            f"none of {TRIES} samples from ordinal {start} of epoch {epoch} can be loaded, and "
            "collate_fn cannot make a batch of no samples: repair the data, or give a layout"
        )

    def weightless(self, batch: Any) -> Any:
        """Return the batch of a spare sample, without labels where losses are sums over them."""
        if self.ignores_labels and isinstance(batch, MutableMapping) and "labels" in batch:
            batch["labels"] = torch.full_like(batch["labels"], IGNORED)
        return batch
