"""Resumes a loader without balancing: skips what was handed out, without loading it.

The order is the sampler's business: one that is seeded (set_epoch, a generator seeded again) gives
the same order in a new process. The default random sampler draws its seed from torch's global
generator; that seed is kept in the ledger, so shuffle=True resumes as it is.
"""

import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from ..step.skipped import LeftOut
from .ledger import PlainLedger, check_same, read_ledger, write_ledger


class PlainState:
    """The number of batches that the current iteration has handed out, and the shuffle's seed.

    `left_out` counts the samples that it has left out, where it may.
    """

    def __init__(self, left_out: LeftOut | None = None) -> None:
        self.left_out = left_out
        self._left_out_before = 0
        self._iterator: Callable[[], Any] = lambda: None
        self._seed: int | None = None
        self._skip = 0
        self._skipped = 0
        self._resume_seed: int | None = None

    def started(self, iterator: Any) -> None:
        """Remember the iterator that is handing out batches now."""
        self._iterator = weakref.ref(iterator)
        self._skipped, self._skip = self._skip, 0
        self._resume_seed = None
        if self.left_out is not None:
            self.left_out.begin(self._left_out_before)
        self._left_out_before = 0

    def state_dict(self, loader: DataLoader[Any]) -> dict[str, Any]:
        """Return the ledger."""
        iterator = self._iterator()
        handed_out = self._skip if iterator is None else self._skipped + _passed(iterator)
        ledger = PlainLedger(
            seed=self._seed if self._resume_seed is None else self._resume_seed,
            batches=handed_out,
            batch_size=loader.batch_size,
            left_out=0 if self.left_out is None else self.left_out.count,
        )
        return write_ledger(ledger)

    def load_state_dict(self, loader: DataLoader[Any], state: dict[str, Any]) -> None:
        """Make the next iteration continue; ValueError if it cannot."""
        if isinstance(loader.dataset, IterableDataset):
            raise ValueError(
                "an IterableDataset cannot be resumed without reading it again: use a map-style "
                "dataset, or shards with TarDataset"
            )
        ledger = read_ledger(state, PlainLedger)
        check_same(ledger, {"batch_size": loader.batch_size})
        self._skip, self._resume_seed = ledger.batches, ledger.seed
        self._iterator = lambda: None
        self._left_out_before = ledger.left_out
        if self.left_out is not None:
            self.left_out.begin(self._left_out_before)

    def following(self, loader: DataLoader[Any], sampler: Any) -> Any:
        """Return the index sampler, made to remember its seed and to skip what was handed out."""
        shuffler = loader.sampler
        own_seed = isinstance(shuffler, RandomSampler) and shuffler.generator is None
        if not own_seed and not self._skip and not loader.persistent_workers:
            return sampler
        return _Following(self, sampler, shuffler if own_seed else None)


class _Following:
    """An index sampler of torch, watched; a persistent iterator comes back to it every epoch."""

    def __init__(self, state: PlainState, sampler: Any, shuffler: Any) -> None:
        self._state = state
        self._sampler = sampler
        self._shuffler = shuffler

    def __iter__(self) -> Iterator[Any]:
        return self._indices(self._state._skip, self._state._resume_seed)

    def _indices(self, skip: int, resume_seed: int | None) -> Iterator[Any]:
        if self._shuffler is None:
            yield from itertools.islice(iter(self._sampler), skip, None)
            return
        if resume_seed is None:
            self._state._seed = _next_seed()
            yield from itertools.islice(iter(self._sampler), skip, None)
            return
        self._state._seed = resume_seed
        self._shuffler.generator = torch.Generator().manual_seed(resume_seed)
        indices = iter(self._sampler)
        try:
            yield from itertools.islice(indices, skip, None)
        finally:
            self._shuffler.generator = None

    def __len__(self) -> int:
        return len(self._sampler)


def _passed(iterator: Any) -> int:
    """Return how many of the sampler's batches are done; those without a sample count, too."""
    passed: int = iterator._num_yielded + getattr(iterator, "empty_batches", 0)
    return passed


def _next_seed() -> int:
    """Return the seed that RandomSampler is about to draw, leaving the generator as it was."""
    before = torch.get_rng_state()
    seed = int(torch.empty((), dtype=torch.int64).random_().item())
    torch.set_rng_state(before)
    return seed
