"""Defines a source: samples by index, each with a permanent key.

`Source` is a base class. A user's own has `__len__` and `__getitem__`, and what else it can say;
the rest has defaults. A map-style data set that is no Source becomes one in plain.py. Nothing here
imports torch.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .costs import MAX_COST, checked_cost, checked_measure, checked_name, sample_nbytes
from .failures import SampleError as SampleError
from .fingerprint import digest, library_versions
from .labels import with_label_tokens
from .randomness import run_seeded

Sample = Any
Cost = Mapping[str, int]
DEFAULT_COST = {"samples": 1}
# Characters of a wrong value, and of the name of a source, that errors quote.
SHOWN_CHARACTERS = 80
NAME_CHARACTERS = 200


def accepts(function: Any, parameter: str) -> bool:
    """Return whether a function has a parameter of that name.

    >>> accepts(accepts, "parameter"), accepts(accepts, "rng"), accepts(None, "rng")
    (True, False, False)
    """
    try:
        return parameter in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


@dataclass(frozen=True, slots=True)
class Probe:
    """The facts known of a sample before it is decoded.

    `cost` maps resources to non-negative integers; `nbytes` is the payload's size once decoded,
    or None where that is not known.
    """

    key: str
    cost: dict[str, int]
    nbytes: int | None = None


class Source(ABC):
    """Samples by index; a subclass has `__len__` and `__getitem__`, and what it can say besides.

    Broken data raises SampleError, a failing disk OSError. Nothing else has to be written: a sample
    is called by its index, costs what `cost` finds in it once it is loaded, or else
    {"samples": 1}, and is `source[i]`, got while the global random generators are seeded.

    cost         a method, or a function, from a loaded sample to its cost; None: there is none
    thread_safe  whether `load`, `probe` and `key` may run in several threads, and draw from no
                 generator of the process
    pattern      what errors and dead letters call the source; "": its class
    reads_stores whether some samples are in an object store
    unlike_json  columns of raw samples that hold what JSON has no value for
    sources      those that it is made of

    >>> class Texts(Source):
    ...     __len__ = lambda self: 2
    ...     __getitem__ = lambda self, index: ["a", "bcd"][index]
    >>> Texts().probe(1), Texts().load(1, epoch=0, seed=7)
    (Probe(key='1', cost={'samples': 1}, nbytes=None), 'bcd')
    """

    cost: Callable[[Sample], Cost] | None = None
    thread_safe: bool = False
    pattern: str | Sequence[str] = ""
    reads_stores: bool = False
    unlike_json: Sequence[str] = ()
    sources: Sequence["Source"] = ()

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @abstractmethod
    def __getitem__(self, index: int, /) -> Sample:
        """Return a sample as of epoch 0 and seed 0."""

    def key(self, index: int) -> str:
        """Return the sample's permanent name."""
        return str(index)

    def load(self, index: int, epoch: int, seed: int) -> Sample:
        """Decode and transform the sample; random choices follow from (seed, epoch, key)."""
        return run_seeded(seed, epoch, self.key(index), self.__getitem__, index)

    def fingerprint(self) -> str:
        """Return a short hash of all that decides which bytes come out: libraries, transforms."""
        return class_fingerprint(self)

    # What samples cost.

    def probe(self, index: int) -> Probe:
        """Find the sample's cost, without decoding it where that is possible."""
        if table := self.cost_table:
            return Probe(self.key(index), {name: int(row[index]) for name, row in table.items()})
        if self.cost is None:
            return Probe(self.key(index), dict(DEFAULT_COST))
        sample = self.load(index, 0, 0)
        return checked_probe(Probe(self.key(index), self.measure(sample), sample_nbytes(sample)))

    @property
    def cost_table(self) -> Mapping[str, np.ndarray]:
        """The costs of all samples where they are said beforehand: a column (n,) a resource."""
        return {}

    @property
    def decode_first(self) -> bool:
        """Return whether a sample has to be loaded to learn its cost."""
        return self.cost is not None

    def measure(self, sample: Sample) -> dict[str, int]:
        """Return a loaded sample's cost, unchecked; only where probing loads it (decode_first)."""
        if self.cost is None:
            raise ValueError("measuring a sample needs cost=, a function of the sample")
        return with_label_tokens(checked_measure(self.cost(sample)), sample)

    @property
    def knows_costs(self) -> bool:
        """Return whether it is said what samples cost: else each counts as 1."""
        is_said = self.cost is not None or type(self).probe is not Source.probe
        return is_said or bool(self.cost_table)

    @property
    def resources(self) -> tuple[str, ...] | None:
        """The names of all that samples cost; None: those that the first sample has."""
        return tuple(self.cost_table) or None

    def known(self, index: int) -> Probe | None:  # noqa: ARG002
        """Return the sample's cost if it is kept or told already, reading no sample; else None."""
        return None

    def known_costs(self, resources: Sequence[str]) -> tuple[np.ndarray, ...] | None:
        """Return the costs of all samples, a column (n,) a resource; None unless all are known.

        They are known where there is a table, and where each sample counts as 1 and is called
        by its index.
        """
        if table := self.cost_table:
            has_all = {*resources} <= {*table}
            return tuple(np.asarray(table[n]) for n in resources) if has_all else None
        if self.knows_costs or self.names_samples or not {*resources} <= {*DEFAULT_COST}:
            return None
        return tuple(np.full(len(self), DEFAULT_COST[name], np.int64) for name in resources)

    def keep(self) -> None:  # noqa: B027 a default
        """Write the costs that were found and are not in a file yet."""

    def refuse_unsaid_costs(self) -> None:  # noqa: B027 a default
        """Raise ValueError where some of what this is made of says costs, and some does not."""

    # What samples are.

    @property
    def names_samples(self) -> bool:
        """Return whether samples have names of their own, not just their index."""
        return type(self).key is not Source.key

    def origin(self, index: int) -> tuple["Source", int]:
        """Return the source, made of no others, that has the sample, and its index there."""
        return self, index

    def raw(self, index: int, headers: bool = False) -> dict[str, Any]:  # noqa: ARG002
        """Return "__key__" and the sample before any transform, by extension: by default itself.

        With `headers` media are files to read from instead of bytes, so that a probe reads little.
        Raises SampleError for one that is broken, ValueError for one that is no mapping.
        """
        sample = self.load(index, 0, 0)
        if not isinstance(sample, Mapping):
            raise ValueError(
                f"it is a {type(sample).__name__}; needed are samples that are dicts of bytes, "
                "images, arrays, texts and JSON by name"
            )
        return {"__key__": self.key(index), **sample}

    def locate_file(self, index: int) -> str:  # noqa: ARG002
        """Return the file that the sample is in; "" for none."""
        return ""

    def stored_ranges(self, index: int, headers: bool) -> Iterable[Any]:  # noqa: ARG002
        """Return what is read of the sample from a store, with `headers` when it is probed."""
        return ()

    def data_digest(self, samples: int | None = None) -> str | None:  # noqa: ARG002
        """Return a hash of the data, or of its first samples: "" where these have none.

        None: not known; then data are told apart by what is in memory, and by keys.
        """
        return None

    def reopen_if_changed(self) -> bool:
        """Look at the files again when an iteration begins; return whether they had changed."""
        return False

    def explain_single_thread(self) -> str:
        """Return why only one thread may load samples, and what to do, to end an error with."""
        return (
            f"{type(self).__name__} does not say that load(), probe() and key() may be called by "
            "several; if they may, give it thread_safe = True"
        )

    # What loops, and workers elsewhere, ask.

    @property
    def mixing(self) -> Any:
        """The Recipe of a mixture, where these are its rows; else None."""
        return None

    @property
    def epoch_rows(self) -> "Source":
        """The source that balanced loops read: itself, or a mixture's rows."""
        return self

    def spec(self) -> dict[str, Any]:
        """Return the JSON-able description that workers elsewhere open; ValueError for none."""
        raise ValueError(
            f"workers elsewhere cannot read a {source_name(self)}: give a TarDataset, a source "
            "with spec(), or a RemoteDataset for files that only they can see"
        )

    @property
    def has_spec(self) -> bool:
        """Return whether there is a description for workers elsewhere."""
        return type(self).spec is not Source.spec


class View(Source):
    """A source whose samples are those of other `sources`; `origin` says where each is."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self.sources = tuple(sources)
        self.thread_safe = all(source.thread_safe for source in self.sources)
        self.reads_stores = any(source.reads_stores for source in self.sources)

    @property
    def knows_costs(self) -> bool:
        """Return whether all sources say what samples cost."""
        return all(source.knows_costs for source in self.sources)

    def keep(self) -> None:
        """Write the costs that were found and are not in a file yet."""
        for source in self.sources:
            source.keep()

    def raw(self, index: int, headers: bool = False) -> dict[str, Any]:
        """Return the raw sample, called as in its own source."""
        source, inside = self.origin(index)
        return super().raw(index) if source is self else source.raw(inside, headers)

    def locate_file(self, index: int) -> str:
        """Return the file that the sample is in; "" for none."""
        source, inside = self.origin(index)
        return "" if source is self else source.locate_file(inside)

    def stored_ranges(self, index: int, headers: bool) -> Iterable[Any]:
        """Return what is read of the sample from a store."""
        source, inside = self.origin(index)
        return () if source is self else source.stored_ranges(inside, headers)


def source_name(dataset: Any) -> str:
    """Return what errors and dead letters call a data set: its files, else its class.

    >>> source_name(["a"])
    'list'
    """
    pattern = dataset.pattern if isinstance(dataset, Source) else ""
    name = pattern if isinstance(pattern, str) else ", ".join(map(str, pattern))
    return name[:NAME_CHARACTERS] or library_class(dataset).__name__


def library_class(dataset: Any) -> type[Any]:
    """Return a data set's class; of a subclass of Hugging Face's, theirs.

    Axolotl's first rank makes a data set of a class of its own, which others load from its folder.
    """
    bases = type(dataset).__mro__
    theirs = (kind for kind in bases if kind.__module__.partition(".")[0] == "datasets")
    return next(theirs, type(dataset))


def class_fingerprint(dataset: Any) -> str:
    """Return a hash of a data set's class and length, and of the libraries' versions."""
    kind = type(dataset)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return digest([name, len(dataset), library_versions("torch")])


def checked_probe(probe: object, key: str = "") -> Probe:
    """Return a probe whose costs are plain ints; SampleError for what cannot be planned.

    `key` is the sample's, for an error about what has none, and where probe() has no text for it.

    >>> checked_probe(Probe("a", {"tiles": 2, "tokens": -1}))
    Traceback (most recent call last):
    ...
    counterpoise.workers.sources.failures.SampleError: sample 'a': cost 'tokens' is -1, allowed \
are whole numbers from 0 to 2**40: round it, or use a larger unit
    """
    if not isinstance(probe, Probe):
        needed = "needed is Probe(key, {resource: cost, ...})"
        raise SampleError(key, f"probe() gave {probe!r:.{SHOWN_CHARACTERS}}, {needed}")
    key = str(probe.key) if isinstance(probe.key, str) else key
    if not isinstance(probe.cost, Mapping):
        shown = f"{probe.cost!r:.{SHOWN_CHARACTERS}}"
        raise SampleError(key, f"the cost is {shown}, needed is {{resource: cost, ...}}")
    nbytes = probe.nbytes
    for name, number in (*probe.cost.items(), (probe.key, nbytes or 0)):
        if type(name) is not str or type(number) is not int or not 0 <= number <= MAX_COST:
            break
    else:
        return probe  # as most do: for them the rest costs more than finding costs
    costs = probe.cost.items()
    cost = {checked_name(name, key): checked_cost(name, number, key) for name, number in costs}
    if nbytes is not None:
        nbytes = checked_cost("nbytes", nbytes, key)
    return Probe(key, cost, nbytes)
