"""The rows of a mixture as a source: each sample of each pass has an index and a key for good."""

import bisect
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...balancer.planning.kernels.arrays import Int64
from ...balancer.planning.mixing.recipe import Recipe, name_number
from ...balancer.planning.problem.shuffle import derive_seed
from ..sources.costs import checked_key
from ..sources.data_identity import KnownData
from ..sources.fingerprint import digest
from ..sources.interface import (
    DEFAULT_COST,
    Probe,
    SampleError,
    Source,
    checked_probe,
    data_of,
    file_of,
)
from ..sources.registry import open_source
from ..stores.samples import reads_stores, stored_ranges

# Not in a source's name, since keys are NAME/KEY, and NAME@2/KEY in the second pass.
MARKS = "/@"


class MixtureRows:
    """The source that loops read a mixture from; see Recipe for what a row is.

    A row's key is NAME/KEY, from the second pass of an epoch on NAME@PASS/KEY: a repeated sample
    is one of its own, with its own random numbers.
    """

    def __init__(self, parts: Sequence[Source], recipe: Recipe) -> None:
        """Take the sources in the recipe's order."""
        self.parts = tuple(parts)
        self.recipe = recipe
        self.pattern = "mixture of " + ", ".join(recipe.names)
        self._begins: list[int] = recipe.first_rows.tolist()
        self._known = [
            KnownData(data_of(part), len(part), part.key).looked_at() for part in self.parts
        ]

    def __len__(self) -> int:
        """Return the number of rows, which may be more than an epoch has samples."""
        return self._begins[-1]

    def epoch_order(self, seed: int, epoch: int, shuffle: bool) -> Int64:
        """Return the rows of an epoch's samples, in order."""
        return self.recipe.order(seed, epoch, shuffle)

    def _at(self, row: int) -> tuple[int, int, int]:
        """Return a row's source, pass and sample."""
        if not 0 <= row < self._begins[-1]:
            raise IndexError(f"row {row} is outside of {self._begins[-1]}")
        number = bisect.bisect_right(self._begins, row) - 1
        passed, sample = divmod(row - self._begins[number], self.recipe.sizes[number])
        return number, passed, sample

    def __getitem__(self, row: int) -> Any:
        """Return the sample as `load(row, epoch=0, seed=0)` would."""
        return self.load(row, 0, 0)

    def _key(self, number: int, passed: int, sample: int) -> str:
        mark = f"@{passed + 1}" if passed else ""
        own = checked_key(self.parts[number].key(sample), sample)
        return f"{self.recipe.names[number]}{mark}/{own}"

    def key(self, row: int) -> str:
        """Return the row's permanent name."""
        return self._key(*self._at(row))

    def load(self, row: int, epoch: int, seed: int) -> Any:
        """Load the sample; its random numbers follow from (seed, epoch, source, pass, key)."""
        number, passed, sample = at = self._at(row)
        own = derive_seed(seed, name_number(self.recipe.names[number]), passed) & 0xFFFFFFFF
        try:
            return self.parts[number].load(sample, epoch, own)
        except SampleError as error:
            raise SampleError(self._key(*at), error.reason, error.source) from error

    def probe(self, row: int) -> Probe:
        """Find the sample's cost: of what other sources cost, and this one does not, 0."""
        number, _, sample = at = self._at(row)
        key = self._key(*at)
        try:
            found = checked_probe(self.parts[number].probe(sample), key)
        except SampleError as error:
            raise SampleError(key, error.reason, error.source) from error
        return self._whole(key, found)

    def known(self, row: int) -> Probe | None:
        """Return the sample's cost if its source has kept it, reading no sample."""
        number, _, sample = at = self._at(row)
        offered = getattr(self.parts[number], "known", None)
        found = None if offered is None else offered(sample)
        return None if found is None else self._whole(self._key(*at), found)

    def _whole(self, key: str, found: Probe) -> Probe:
        unsaid = {} if self.knows_costs else DEFAULT_COST
        costs = dict.fromkeys(self.resources, 0) | unsaid | found.cost
        return Probe(key, costs, found.nbytes)

    @cached_property
    def resources(self) -> tuple[str, ...]:
        """The names of all that samples cost, in the sources that say it."""
        told = [part for part in self.parts if getattr(part, "knows_costs", True)]
        return tuple({name: 0 for part in told or self.parts for name in resources_of(part)})

    def refuse_unsaid_costs(self) -> None:
        """Raise ValueError where only some sources say what their samples cost."""
        says = [bool(getattr(part, "knows_costs", True)) for part in self.parts]
        if any(says) and not all(says):
            silent, other = (self.recipe.names[says.index(each)] for each in (False, True))
            raise ValueError(
                f"source {silent!r} of the mixture does not say what its samples cost, and "
                f"{other!r} does: give PlainSource(data, cost=...), or DataLoader(cost=...) for all"
            )

    def known_costs(self, resources: Sequence[str]) -> tuple[np.ndarray, ...] | None:
        """Return the costs of all rows, a column a resource; None where not all are known."""
        tables = [all_costs(part, resources) for part in self.parts]
        if any(table is None for table in tables):
            return None
        return tuple(
            np.concatenate(
                [
                    np.tile(table[name], passes)
                    for table, passes in zip(tables, self.recipe.passes, strict=True)
                    if table is not None
                ]
            )
            for name in resources
        )

    def table(self) -> dict[str, np.ndarray]:
        """Return the costs of all rows by resource; ValueError where not all are known."""
        found = self.known_costs(self.resources)
        if found is None:
            raise ValueError(
                "a sampler needs the costs of all samples, and the mixture's sources have no "
                "tables: give PlainSource(data, cost={...}), or use counterpoise.DataLoader"
            )
        return dict(zip(self.resources, found, strict=True))

    @property
    def knows_costs(self) -> bool:
        """Return whether all sources say what their samples cost."""
        return all(getattr(part, "knows_costs", True) for part in self.parts)

    @property
    def thread_safe(self) -> bool:
        """Return whether all sources are."""
        return all(getattr(part, "thread_safe", False) for part in self.parts)

    def file_of(self, row: int) -> str:
        """Return the file that the sample is in, empty where its source does not say."""
        number, _, sample = self._at(row)
        return file_of(self.parts[number], sample)

    @property
    def reads_stores(self) -> bool:
        """Whether samples of some source are in a store."""
        return any(map(reads_stores, self.parts))

    def stored_ranges(self, row: int, headers: bool) -> list[Any]:
        """Return what is read from a store of a sample."""
        number, _, sample = self._at(row)
        return stored_ranges(self.parts[number], sample, headers)

    def spec(self) -> dict[str, Any]:
        """Return the description for workers elsewhere; ValueError where a source has none."""
        for name, part in zip(self.recipe.names, self.parts, strict=True):
            if not hasattr(part, "spec"):
                raise ValueError(
                    f"workers elsewhere cannot read source {name!r} of the mixture, a "
                    f"{type(part).__name__}: give a TarDataset, or leave balancer="
                )
        parts = [part.spec() for part in self.parts if hasattr(part, "spec")]
        return {"source": "mixture", "parts": parts, "recipe": self.recipe.row_facts()}

    @classmethod
    def from_spec(
        cls,
        spec: Mapping[str, Any],
        root: str | Path | None,
        allowed: Iterable[str] = (),
        cache: str | Path | None = None,
    ) -> "MixtureRows":
        """Open what spec() describes, each source as it would be; ValueError where it is wrong."""
        recipe, parts = Recipe.of_facts(spec.get("recipe") or {}), spec.get("parts")
        if not isinstance(parts, list) or not all(isinstance(each, Mapping) for each in parts):
            raise ValueError("a mixture is described by parts, a list of sources, and a recipe")
        names = tuple(allowed)
        opened = [open_source(each, root, names, cache) for each in parts]
        if (sizes := [len(each) for each in opened]) != [*recipe.sizes]:
            raise ValueError(
                f"the mixture's sources have {sizes} samples here, and where it was made "
                f"{[*recipe.sizes]}: give the workers the same files"
            )
        return cls(opened, recipe)

    def fingerprint(self) -> str:
        """Return a hash of the sources' fingerprints."""
        return digest([self.recipe.names, [part.fingerprint() for part in self.parts]])

    def data_digest(self, samples: int | None = None) -> str:
        """Return a hash of the sources' data and of the recipe; "" of first samples: others."""
        if samples is not None:
            return ""
        facts = [each.identity for each in self._known]
        return digest([self.recipe.digest, facts])


def resources_of(part: Source) -> tuple[str, ...]:
    """Return what a source's samples cost; those of the first that can be measured."""
    offered = getattr(part, "resources", None)
    if offered is not None:
        return tuple(offered)
    reason = ""
    for index in range(min(len(part), 100)):
        try:
            return tuple(part.probe(index).cost)
        except SampleError as error:
            reason = str(error)
    raise ValueError(f"none of the first 100 samples can be measured, the last: {reason}")


def all_costs(part: Source, resources: Sequence[str]) -> dict[str, np.ndarray] | None:
    """Return a source's table of costs, 0 of what it does not cost; None where it has none."""
    uniform = getattr(part, "uniform_cost", None)
    if uniform is not None:
        return {name: np.full(len(part), uniform.get(name, 0), np.int64) for name in resources}
    columns = getattr(part, "known_costs", None)
    own = [name for name in resources_of(part) if name in resources]
    found = None if columns is None else columns(own)
    if found is None:
        return None
    table = dict(zip(own, found, strict=True))
    none = np.zeros(len(part), np.int64)
    return {name: table.get(name, none + DEFAULT_COST.get(name, 0)) for name in resources}
