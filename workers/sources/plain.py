"""Makes a Source of any map-style data set, of what that offers (see offered.py)."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .costs import checked_key, checked_table
from .failures import load_with_retries
from .interface import (
    Cost,
    Probe,
    Sample,
    SampleError,
    Source,
    View,
    checked_probe,
    class_fingerprint,
    source_name,
)
from .offered import (
    choose_getter,
    find_key_function,
    find_part,
    is_thread_safe,
    offered_method,
    says_costs,
    whole_parts,
)
from .randomness import run_seeded


class PlainSource(View):
    """Makes any map-style dataset a source; methods that it has (key, probe...) are used.

    `cost` says what a sample costs, in one of two ways: a callable takes the loaded sample (so
    probing loads it: `decode_first` is then true), a table says it beforehand, either as a mapping
    from resource to n integers, or as an array (n,) whose resource is called "cost". Without
    either, torch's Subset and ConcatDataset have the costs of what they are made of, where that
    has `probe`; any other sample costs {"samples": 1}. `key` maps an index to a name; default: the
    index.

    >>> source = PlainSource(["a", "bcd"], cost=lambda text: {"tokens": len(text)})
    >>> source.probe(1)
    Probe(key='1', cost={'tokens': 3}, nbytes=3)
    >>> PlainSource(["a", "bcd"], cost={"tokens": [5, 7]}, key="n{}".format).probe(0)
    Probe(key='n0', cost={'tokens': 5}, nbytes=None)
    """

    def __init__(
        self,
        dataset: Any,
        cost: Callable[[Sample], Cost] | Mapping[str, Any] | np.ndarray | None = None,
        key: Callable[[int], str] | None = None,
    ) -> None:
        has_items = hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")
        if not has_items or not hasattr(dataset, "__len__"):
            raise ValueError(
                f"a source needs a map-style dataset, but {type(dataset).__name__} has no "
                f"{'__len__' if has_items else '__getitem__'}; give an object with len() and "
                "dataset[i]"
            )
        if len(dataset) == 0:
            raise ValueError(f"the dataset ({type(dataset).__name__}) is empty: nothing to load")
        super().__init__(part for part in whole_parts(dataset) if isinstance(part, Source))
        self.dataset = dataset
        self.pattern = source_name(dataset)
        self._get = choose_getter(dataset)
        # A method of the dataset's own is used unless an argument replaces it.
        self._key = key or find_key_function(dataset)
        self._load = offered_method(dataset, "load")
        self.thread_safe = self._load is not None and is_thread_safe(dataset)
        self.cost = cost if callable(cost) else None
        self._table = {} if cost is None or callable(cost) else checked_table(cost, len(dataset))
        self._probe = self._find_probe(dataset) if cost is None else None

    def _find_probe(self, dataset: Any) -> Callable[[int], Probe] | None:
        """Return the dataset's own probe, or one that asks its parts; None if neither is there."""
        if says_costs(dataset):
            return offered_method(dataset, "probe")
        return self._probe_part if all(map(says_costs, whole_parts(dataset))) else None

    def _probe_part(self, index: int) -> Probe:
        part, inside = find_part(self.dataset, index)
        probe = checked_probe(part.probe(inside), self.key(index))
        return Probe(self.key(index), probe.cost, probe.nbytes)

    @property
    def cost_table(self) -> Mapping[str, np.ndarray]:
        """The table that was given as `cost`."""
        return self._table

    @property
    def knows_costs(self) -> bool:
        """Return whether it is said what samples cost: else each counts as 1."""
        return bool(self._table) or any(e is not None for e in (self.cost, self._probe))

    @property
    def names_samples(self) -> bool:
        """Return whether samples have names of their own, not just their index."""
        return self._key is not str or type(self).key is not PlainSource.key

    @property
    def mixing(self) -> Any:
        """The Recipe of a mixture, where these are its rows; else None."""
        return self.dataset.mixing if isinstance(self.dataset, Source) else None

    def known(self, index: int) -> Probe | None:
        """Return a sample's cost if its part has kept it (TarDataset), reading no sample."""
        source, inside = self.origin(index) if self._probe and self.sources else (self, 0)
        probe = None if source is self else source.known(inside)
        return None if probe is None else Probe(self.key(index), probe.cost, probe.nbytes)

    def origin(self, index: int) -> tuple[Source, int]:
        """Return the source, made of no others, that has the sample, and its index there."""
        part, inside = find_part(self.dataset, index) if self.sources else (None, index)
        return part.origin(inside) if isinstance(part, Source) else (self, index)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Sample:
        return self._get(self.dataset, index)

    def key(self, index: int) -> str:
        """Return the sample's permanent name; TypeError where the data set gives no text."""
        return checked_key(self._key(index), index)

    def probe(self, index: int) -> Probe:
        """Find the cost of a sample; SampleError where it is none."""
        if self._probe is not None:
            return checked_probe(self._probe(index), self.key(index))
        return super().probe(index)

    def load(self, index: int, epoch: int, seed: int) -> Sample:
        """Load a sample while the global generators are seeded from (seed, epoch, key)."""
        if self._load is not None:
            return self._load(index, epoch, seed)
        return run_seeded(seed, epoch, self.key(index), self._get, self.dataset, index)

    def fingerprint(self) -> str:
        """Return a hash of the dataset's type and length and of the libraries' versions."""
        offered = offered_method(self.dataset, "fingerprint")
        return class_fingerprint(self.dataset) if offered is None else str(offered())

    def explain_single_thread(self) -> str:
        """Return why only one thread may load samples, and what to do, to end an error with."""
        if isinstance(self.dataset, Source):
            return self.dataset.explain_single_thread()
        if self._load is not None:
            return super().explain_single_thread()
        return (
            "a plain dataset may draw from the generators of the process (random, numpy, torch), "
            "which threads share; give it load(index, epoch, seed), which does not, and "
            "thread_safe = True"
        )


def as_source(
    dataset: Any,
    cost: Callable[[Sample], Cost] | Mapping[str, Any] | np.ndarray | None = None,
    key: Callable[[int], str] | None = None,
) -> Source:
    """Return the dataset itself where it is a source, else a PlainSource around it."""
    is_source = isinstance(dataset, Source) and cost is None and key is None
    return dataset if is_source else PlainSource(dataset, cost, key)


def unwrap_dataset(source: Any) -> Any:
    """Return the data set of a source: what a PlainSource is around, else itself."""
    return source.dataset if isinstance(source, PlainSource) else source


def probe_resources(
    source: Source, sleep: Callable[[float], None] = time.sleep, tries: int = 100
) -> tuple[str, ...]:
    """Return the names of a source's costs, in its order: of the first that can be probed.

    A failed read is repeated after `sleep(seconds)`. Raises ValueError where the first `tries`
    samples are all broken.
    """
    if source.resources is not None:
        return source.resources
    reason = ""
    for index in range(min(len(source), tries)):
        try:
            return tuple(load_with_retries(source.probe, sleep, arguments=(index,)).cost)
        except SampleError as error:
            reason = str(error)
    raise ValueError(f"none of the first {tries} samples can be measured, the last: {reason}")
