"""The rows of a mixture as a source: each sample of each pass has an index and a key for good."""

import bisect
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...balancer.planning.mixing.recipe import Recipe, name_number
from ...balancer.planning.problem.shuffle import derive_seed
from ..sources.costs import checked_key
from ..sources.data_identity import KnownData
from ..sources.fingerprint import digest
from ..sources.interface import DEFAULT_COST, Probe, SampleError, Source, View, checked_probe
from ..sources.plain import probe_resources, unwrap_dataset
from ..sources.registry import open_source

# Not in a source's name, since keys are NAME/KEY, and NAME@2/KEY in the second pass.
MARKS = "/@"


class MixtureRows(View):
    """The source that loops read a mixture from; see Recipe for what a row is.

    A row's key is NAME/KEY, from the second pass of an epoch on NAME@PASS/KEY: a repeated sample
    is one of its own, with its own random numbers.
    """

    def __init__(self, parts: Sequence[Source], recipe: Recipe) -> None:
        """Take the sources in the recipe's order."""
        super().__init__(parts)
        self.recipe = recipe
        self.pattern = "mixture of " + ", ".join(recipe.names)
        self._begins: list[int] = recipe.first_rows.tolist()
        known = (KnownData(unwrap_dataset(part), len(part), part.key) for part in self.sources)
        self._known = [data.look_at_samples() for data in known]

    @property
    def mixing(self) -> Recipe:
        """The recipe."""
        return self.recipe

    def __len__(self) -> int:
        return self._begins[-1]

    def _locate(self, row: int) -> tuple[int, int, int]:
        """Return a row's source, pass and sample."""
        if not 0 <= row < self._begins[-1]:
            raise IndexError(f"row {row} is outside of {self._begins[-1]}")
        number = bisect.bisect_right(self._begins, row) - 1
        passed, sample = divmod(row - self._begins[number], self.recipe.sizes[number])
        return number, passed, sample

    def origin(self, row: int) -> tuple[Source, int]:
        """Return the source, made of no others, that has the sample, and its index there."""
        number, _, sample = self._locate(row)
        return self.sources[number].origin(sample)

    def __getitem__(self, row: int) -> Any:
        return self.load(row, 0, 0)

    def _make_key(self, number: int, passed: int, sample: int) -> str:
        mark = f"@{passed + 1}" if passed else ""
        sample_key = checked_key(self.sources[number].key(sample), sample)
        return f"{self.recipe.names[number]}{mark}/{sample_key}"

    def key(self, row: int) -> str:
        """Return the row's permanent name."""
        return self._make_key(*self._locate(row))

    def load(self, row: int, epoch: int = 0, seed: int = 0) -> Any:
        """Load the sample; its random numbers follow from (seed, epoch, source, pass, key)."""
        number, passed, sample = at = self._locate(row)
        pass_seed = derive_seed(seed, name_number(self.recipe.names[number]), passed) & 0xFFFFFFFF
        try:
            return self.sources[number].load(sample, epoch, pass_seed)
        except SampleError as error:
            raise SampleError(self._make_key(*at), error.reason, error.source) from error

    def probe(self, row: int) -> Probe:
        """Find the sample's cost: of what other sources cost, and this one does not, 0."""
        number, _, sample = at = self._locate(row)
        key = self._make_key(*at)
        try:
            probe = checked_probe(self.sources[number].probe(sample), key)
        except SampleError as error:
            raise SampleError(key, error.reason, error.source) from error
        return self._complete(key, probe)

    def known(self, row: int) -> Probe | None:
        """Return the sample's cost if its source has kept it, reading no sample."""
        number, _, sample = at = self._locate(row)
        probe = self.sources[number].known(sample)
        return None if probe is None else self._complete(self._make_key(*at), probe)

    def _complete(self, key: str, probe: Probe) -> Probe:
        unsaid = {} if self.knows_costs else DEFAULT_COST
        costs = dict.fromkeys(self.resources, 0) | unsaid | probe.cost
        return Probe(key, costs, probe.nbytes)

    @cached_property
    def resources(self) -> tuple[str, ...]:
        """The names of all that samples cost, in the sources that say it."""
        priced = [part for part in self.sources if part.knows_costs]
        return tuple({name: 0 for part in priced or self.sources for name in probe_resources(part)})

    def refuse_unsaid_costs(self) -> None:
        """Raise ValueError where only some sources say what their samples cost."""
        says = [part.knows_costs for part in self.sources]
        if any(says) and not all(says):
            silent, priced = (
                self.recipe.names[says.index(is_priced)] for is_priced in (False, True)
            )
            raise ValueError(
                f"source {silent!r} of the mixture does not say what its samples cost, and "
                f"{priced!r} does: give PlainSource(data, cost=...), or DataLoader(cost=...) for "
                "all"
            )

    def known_costs(self, resources: Sequence[str]) -> tuple[np.ndarray, ...] | None:
        """Return the costs of all rows, a column a resource; None where not all are known."""
        columns: list[list[np.ndarray]] = [[] for _ in resources]
        for part, passes in zip(self.sources, self.recipe.passes, strict=True):
            if (table := all_costs(part, resources)) is None:
                return None
            for column, name in zip(columns, resources, strict=True):
                column.append(np.tile(table[name], passes))
        return tuple(map(np.concatenate, columns))

    def table(self) -> dict[str, np.ndarray]:
        """Return the costs of all rows by resource; ValueError where not all are known."""
        columns = self.known_costs(self.resources)
        if columns is None:
            raise ValueError(
                "a sampler needs the costs of all samples, and the mixture's sources have no "
                "tables: give PlainSource(data, cost={...}), or use counterpoise.DataLoader"
            )
        return dict(zip(self.resources, columns, strict=True))

    def spec(self) -> dict[str, Any]:
        """Return the description for workers elsewhere; ValueError where a source has none."""
        parts = list[dict[str, Any]]()
        for name, part in zip(self.recipe.names, self.sources, strict=True):
            try:
                parts.append(part.spec())
            except ValueError as error:
                raise ValueError(f"source {name!r} of the mixture: {error}") from error
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
        recipe, parts = Recipe.from_facts(spec.get("recipe") or {}), spec.get("parts")
        if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
            raise ValueError("a mixture is described by parts, a list of sources, and a recipe")
        names = tuple(allowed)
        opened = [open_source(part, root, names, cache) for part in parts]
        if (sizes := [len(part) for part in opened]) != [*recipe.sizes]:
            raise ValueError(
                f"the mixture's sources have {sizes} samples here, and where it was made "
                f"{[*recipe.sizes]}: give the workers the same files"
            )
        return cls(opened, recipe)

    def fingerprint(self) -> str:
        """Return a hash of the sources' fingerprints."""
        return digest([self.recipe.names, [part.fingerprint() for part in self.sources]])

    def data_digest(self, samples: int | None = None) -> str:
        """Return a hash of the sources' data and of the recipe; "" of first samples: others."""
        if samples is not None:
            return ""
        facts = [known.identity for known in self._known]
        return digest([self.recipe.digest, facts])


def all_costs(part: Source, resources: Sequence[str]) -> dict[str, np.ndarray] | None:
    """Return a source's table of costs, 0 of what it does not cost; None where it has none."""
    names = [name for name in probe_resources(part) if name in resources]
    if (columns := part.known_costs(names)) is None:
        return None
    table = dict(zip(names, columns, strict=True))
    none = np.zeros(len(part), np.int64)
    return {name: table.get(name, none + DEFAULT_COST.get(name, 0)) for name in resources}
