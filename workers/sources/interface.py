"""Defines a source: samples by index, each with a permanent key.

A source is a map-style dataset (`len`, `source[i]`) that can also name a sample (`key`), find its
cost without decoding it (`probe`), decode it with randomness fixed by (seed, epoch, key) (`load`)
and say what would have to be the same elsewhere for the same bytes to come out (`fingerprint`).
`as_source` makes one of any map-style dataset. Nothing here imports torch.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem
from types import FunctionType
from typing import Any, Protocol

import numpy as np

from .costs import (
    MAX_COST,
    CostError,
    checked_cost,
    checked_key,
    checked_measure,
    checked_name,
    checked_table,
    sample_nbytes,
)
from .data_identity import part_at, whole_parts
from .fingerprint import digest, library_versions
from .labels import with_label_tokens
from .randomness import run_seeded
from .visible_text import visible

Sample = Any
Cost = Mapping[str, int]
DEFAULT_COST = {"samples": 1}
NAME_CHARACTERS = 200
# Characters of a wrong value that an error quotes.
SHOWN_CHARACTERS = 80
METHODS = ("key", "probe", "load", "fingerprint")


def accepts(function: Any, parameter: str) -> bool:
    """Return whether a function has a parameter of that name.

    >>> accepts(as_source, "key"), accepts(as_source, "rng"), accepts(None, "rng")
    (True, False, False)
    """
    function = getattr(function, "__func__", function)
    # Of plain functions they are kept: to find them out takes a forked worker almost as long as to
    # open a source. Other callables may change, or have no hash.
    read = _known_parameters if isinstance(function, FunctionType) else _parameters
    try:
        return parameter in read(function)
    except (TypeError, ValueError):
        return False


def _parameters(function: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


_known_parameters = functools.lru_cache(64)(_parameters)


class SampleError(ValueError):
    """A sample that cannot be used, and why: a fact about the data, which a retry cannot change."""

    def __init__(self, key: str, reason: str, source: str = "") -> None:
        """`source` is the file that the sample is in, where that is known."""
        key = str(key)  # who raises it may name a sample by its index
        reason = visible(reason)  # names of members are in it, which anybody may have chosen
        super().__init__(key, reason, source)
        self.key = key
        self.reason = reason
        self.source = source

    def __str__(self) -> str:
        place = f" of {visible(self.source)}" if self.source else ""
        return f"sample {self.key!r}{place}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Probe:
    """The facts known of a sample before it is decoded.

    `cost` maps resources to non-negative integers; `nbytes` is the payload's size once decoded,
    or None where that is not known.
    """

    key: str
    cost: dict[str, int]
    nbytes: int | None = None


class Source(Protocol):
    """Samples by index. Broken data raises SampleError, a failing disk OSError.

    One with an attribute `thread_safe = True` may be asked by several threads at the same time. One
    whose `probe` cannot tell what samples cost has `knows_costs = False`: who balances finds out.
    """

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, index: int, /) -> Sample:
        """Return the sample as `load(index, epoch=0, seed=0)` would."""
        ...

    def key(self, index: int) -> str:
        """Return the sample's permanent name."""
        ...

    def probe(self, index: int) -> Probe:
        """Find the sample's cost, without decoding it where that is possible."""
        ...

    def load(self, index: int, epoch: int, seed: int) -> Sample:
        """Decode and transform the sample; random choices follow from (seed, epoch, key)."""
        ...

    def fingerprint(self) -> str:
        """Return a short hash of all that decides which bytes come out."""
        ...


class PlainSource:
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
        self.dataset = dataset
        self._get = getter_of(dataset)
        # A method of the dataset's own is used unless an argument replaces it.
        self._key = key or _offered(dataset, "key") or str
        self._measure = cost if callable(cost) else None
        self._table = None if cost is None or callable(cost) else checked_table(cost, len(dataset))
        self._probe = self._probe_of(dataset) if cost is None else None
        self._load = _offered(dataset, "load")
        # Whether something that the data set is made of keeps what was measured.
        parts = whole_parts(dataset) if self._probe is not None else ()
        self._keeps = any(_offered(part, "known") for part in parts)

    def _probe_of(self, dataset: Any) -> Callable[[int], Probe] | None:
        """Return the dataset's own probe, or one that asks its parts; None if neither is there."""
        if says_costs(dataset):
            return _offered(dataset, "probe")
        return self._probe_part if all(map(says_costs, whole_parts(dataset))) else None

    def _probe_part(self, index: int) -> Probe:
        part, inside = part_at(self.dataset, index)
        found = checked_probe(part.probe(inside), self.key(index))
        return Probe(self.key(index), found.cost, found.nbytes)

    @property
    def decode_first(self) -> bool:
        """Return whether a sample has to be loaded to learn its cost."""
        return self._measure is not None

    @property
    def thread_safe(self) -> bool:
        """Return whether the dataset says so, and loads samples without the global generators."""
        return self._load is not None and bool(getattr(self.dataset, "thread_safe", False))

    @property
    def knows_costs(self) -> bool:
        """Return whether anybody has said what samples cost: else each counts as 1."""
        return any(each is not None for each in (self._measure, self._table, self._probe))

    @property
    def _asks_others(self) -> bool:
        """True if a data set, or a subclass, names samples or measures them its own way."""
        return self.names_samples or type(self).probe is not PlainSource.probe

    @property
    def uniform_cost(self) -> dict[str, int] | None:
        """The cost of each sample where no data set says one or names samples; else None."""
        return None if self.knows_costs or self._asks_others else dict(DEFAULT_COST)

    @property
    def names_samples(self) -> bool:
        """Return whether samples have names of their own, not just their index."""
        return self._key is not str or type(self).key is not PlainSource.key

    def known_costs(self, resources: Sequence[str]) -> tuple[np.ndarray, ...] | None:
        """Return the table's columns of these resources, each (n,); None unless it has them all."""
        table = self._table or {}
        is_whole = bool(table) and all(name in table for name in resources)
        return tuple(table[name] for name in resources) if is_whole else None

    def cost_columns(self, resources: Sequence[str]) -> tuple[np.ndarray, ...] | None:
        """Return what `known_costs` does; None where samples have names of their own.

        To name them is the data set's work.
        """
        return None if self._asks_others else self.known_costs(resources)

    def known(self, index: int) -> Probe | None:
        """Return a sample's cost if its part has kept it (TarDataset), reading no sample."""
        if not self._keeps:
            return None
        part, inside = part_at(self.dataset, index)
        known = _offered(part, "known")
        found: Probe | None = None if known is None else known(inside)
        return None if found is None else Probe(self.key(index), found.cost, found.nbytes)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.dataset)

    def __getitem__(self, index: int) -> Sample:
        """Return the dataset's sample, untouched."""
        return self._get(self.dataset, index)

    def key(self, index: int) -> str:
        """Return the sample's permanent name; TypeError where the data set gives no text."""
        return checked_key(self._key(index), index)

    def probe(self, index: int) -> Probe:
        """Find the cost of a sample; SampleError where it is none."""
        if self._probe is not None:
            return checked_probe(self._probe(index), self.key(index))
        if self._measure is not None:
            sample = self.load(index, epoch=0, seed=0)
            found = Probe(self.key(index), self.measure(sample), sample_nbytes(sample))
            return checked_probe(found)
        if self._table is None:
            return Probe(self.key(index), dict(DEFAULT_COST))
        return Probe(self.key(index), {name: int(row[index]) for name, row in self._table.items()})

    def measure(self, sample: Sample) -> dict[str, int]:
        """Return a loaded sample's cost, unchecked; only where probing loads it (decode_first)."""
        if self._measure is None:
            raise ValueError("measuring a sample needs cost=, a function of the sample")
        return with_label_tokens(checked_measure(self._measure(sample)), sample)

    def load(self, index: int, epoch: int, seed: int) -> Sample:
        """Load a sample while the global generators are seeded from (seed, epoch, key)."""
        if self._load is not None:
            return self._load(index, epoch, seed)
        found: Sample = run_seeded(seed, epoch, self.key(index), self._get, self.dataset, index)
        return found

    def fingerprint(self) -> str:
        """Return a hash of the dataset's type and length and of the libraries' versions."""
        offered = _offered(self.dataset, "fingerprint")
        if offered is not None:
            return str(offered())
        kind = type(self.dataset)
        name = f"{kind.__module__}.{kind.__qualname__}"
        return digest([name, len(self.dataset), library_versions("torch")])


def as_source(
    dataset: Any,
    cost: Callable[[Sample], Cost] | Mapping[str, Any] | np.ndarray | None = None,
    key: Callable[[int], str] | None = None,
) -> Source:
    """Return the dataset itself where it is a source, else a PlainSource around it."""
    whole = all(_offered(dataset, method) for method in METHODS)
    return dataset if whole and cost is None and key is None else PlainSource(dataset, cost, key)


def says_costs(dataset: Any) -> bool:
    """Return whether a data set has a `probe`, and does not say that it knows no costs.

    >>> says_costs(PlainSource(["a"])), says_costs(PlainSource(["a"], cost={"tokens": [1]}))
    (False, True)
    """
    return _offered(dataset, "probe") is not None and bool(getattr(dataset, "knows_costs", True))


def getter_of(dataset: Any) -> Callable[[Any, int], Sample]:
    """Return what gets a sample of a dataset by its index: where it gives lists only, a list of 1.

    >>> class Lists:
    ...     __getitems__ = staticmethod(lambda indices: [10 * each for each in indices])
    >>> getter_of(Lists())(Lists(), 3), getter_of("abc")("abc", 2)
    (30, 'c')
    """
    return _of_lists if any(map(_gives_lists_only, whole_parts(dataset))) else getitem


def _gives_lists_only(dataset: Any) -> bool:
    own = getattr(type(dataset), "__getitem__", None)
    # The class from which torch's data sets are made has one that raises NotImplementedError.
    is_torchs = getattr(own, "__qualname__", "") == "Dataset.__getitem__"
    return (own is None or is_torchs) and hasattr(dataset, "__getitems__")


def _of_lists(dataset: Any, index: int) -> Sample:
    part, inside = part_at(dataset, index)
    return part.__getitems__([inside])[0] if _gives_lists_only(part) else part[inside]


def data_of(source: Any) -> Any:
    """Return the data set of a source: what a PlainSource is around, else itself."""
    return source.dataset if isinstance(source, PlainSource) else source


def source_name(source: Any) -> str:
    """Return a source's name for errors and dead letters: its files, else its type.

    >>> source_name(PlainSource(["a"]))
    'list'
    """
    dataset = data_of(source)
    pattern = getattr(dataset, "pattern", type(dataset).__name__)
    name = pattern if isinstance(pattern, str) else ", ".join(map(str, pattern))
    return name[:NAME_CHARACTERS]


def file_of(source: Any, index: Any) -> str:
    """Return the file that a sample is in; empty where the source has no `file_of` to ask.

    >>> file_of(PlainSource(["a"]), 0)
    ''
    """
    offered = _offered(data_of(source), "file_of")
    return "" if offered is None else str(offered(index))


def reopen_if_changed(dataset: Any) -> bool:
    """Index the files of a dataset that can (TarDataset) again; return whether they had changed.

    >>> reopen_if_changed([1, 2])
    False
    """
    reopen = _offered(dataset, "reopen_if_changed")
    return reopen is not None and bool(reopen())


def checked_probe(found: object, key: str = "") -> Probe:
    """Return a probe whose costs are plain ints; SampleError for what cannot be planned.

    `key` is the sample's, for an error about what has none, and where probe() has no text for it.

    >>> checked_probe(Probe("a", {"tiles": 2, "tokens": -1}))
    Traceback (most recent call last):
    ...
    counterpoise.workers.sources.interface.SampleError: sample 'a': cost 'tokens' is -1, allowed \
are whole numbers from 0 to 2**40: round it, or use a larger unit
    """
    if not isinstance(found, Probe):
        needed = "needed is Probe(key, {resource: cost, ...})"
        raise SampleError(key, f"probe() gave {found!r:.{SHOWN_CHARACTERS}}, {needed}")
    key = str(found.key) if isinstance(found.key, str) else key
    if not isinstance(found.cost, Mapping):
        shown = f"{found.cost!r:.{SHOWN_CHARACTERS}}"
        raise SampleError(key, f"the cost is {shown}, needed is {{resource: cost, ...}}")
    nbytes = found.nbytes
    for name, each in (*found.cost.items(), (found.key, nbytes or 0)):
        if type(name) is not str or type(each) is not int or not 0 <= each <= MAX_COST:
            break
    else:
        return found  # as most do: for them the rest costs more than finding costs
    try:
        cost = {
            checked_name(name, key): checked_cost(name, value, key)
            for name, value in found.cost.items()
        }
        if nbytes is not None:
            nbytes = checked_cost("nbytes", nbytes, key)
    except CostError as error:
        raise SampleError(key, error.reason) from None
    return Probe(key, cost, nbytes)


def _offered(dataset: Any, method: str) -> Callable[..., Any] | None:
    found = getattr(dataset, method, None)
    return found if callable(found) else None
