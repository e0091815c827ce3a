"""`Mixture`: several sources as one data set, in exact proportions."""

import mmap
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from ...balancer.planning.kernels.arrays import Int64
from ...balancer.planning.mixing.recipe import ALL, FIRST, Begun, Recipe
from ..sources.chosen import ChosenSamples
from ..sources.data_identity import KnownData
from ..sources.interface import SampleError, Source
from ..sources.plain import as_source
from .order import find_source
from .recipe_files import open_recipe, read_recipe
from .rows import MARKS, MixtureRows, all_costs

Weights = Mapping[str, float]
SAMPLES = "samples"
CONTINUE = "continue"


class Mixture(ChosenSamples):
    """Several sources as one data set, of which each has its share at every prefix of an epoch.

        data = cp.Mixture({"web": (web, 3), "docs": (docs, 1)}, epoch=100_000)
        loader = cp.DataLoader(data, balance=..., shuffle=True)

    Balanced loops order its samples by their plan's seed and epoch. Elsewhere len() is an epoch's
    samples and mixture[i] the i-th of them, so that a loop without shuffle has the mixture; epochs
    are chosen with set_epoch(). By samples no source is ever a whole sample off its share. Raises
    ValueError for weights, names or rules that contradict each other.

    Args:
        sources: For each name a data set as DataLoader takes it, or a pair of one and its weight.
        by: What weights are shares of: "samples" (the default), or a cost that all sources know.
        epoch: The number of its samples; or when it ends: "first" (the default), with the first
            source that has been through, the name of one, or "all", when all have.
        repeat: Whether a source that has been through begins again, with another shuffle (the
            default); False: the others share what was its own. Or the names of those that do.
            "continue": all do, and an epoch goes on where each source stood at the end of the one
            before, by samples; otherwise it begins a new pass over each.
        schedule: Weights that hold later: pairs of a number of samples (or of what `by` says) of
            the epoch and the weights from there on, by name; a name left out has none.
        temperature: In place of weights: they are proportional to size ** (1 / temperature), in
            what `by` says; default 1 where no source has a weight.
        begin: Where sources stand, as counters() of an earlier mixture said; default: at 0.
        seed: Of the order where no plan has one, as in a loop without balance; default 0.
    """

    def __init__(
        self,
        sources: Mapping[str, Any],
        by: str = SAMPLES,
        *,
        epoch: int | str = FIRST,
        repeat: bool | Literal["continue"] | Collection[str] = True,
        schedule: Sequence[tuple[int, Weights]] = (),
        temperature: float | None = None,
        begin: Mapping[str, Sequence[int]] | None = None,
        seed: int = 0,
    ) -> None:
        names = tuple(_checked_names(sources))
        pairs = [source if _is_pair(source) else (source, None) for source in sources.values()]
        parts = [as_source(source) for source, _ in pairs]
        costs = None
        if by != SAMPLES:
            costs = tuple(_find_costs(n, p, by) for n, p in zip(names, parts, strict=True))
        sizes = tuple(len(part) for part in parts)
        totals = sizes if costs is None else [int(column.sum()) for column in costs]
        weights = _find_weights(names, [weight for _, weight in pairs], totals, temperature)
        self.by, self.seed = by, seed
        steps = _checked_schedule(names, weights, schedule)
        ends, repeats = _checked_epoch(names, epoch), _checked_repeats(names, repeat)
        earlier = {name: counters for name, counters in (begin or {}).items() if name in names}
        begun = {name: _checked_begun(name, counters) for name, counters in earlier.items()}
        recipe = Recipe(names, sizes, steps, ends, repeats, costs, begun, repeat == CONTINUE)
        _check_end(recipe)
        self.rows = MixtureRows(parts, recipe)
        super().__init__(self.rows)
        self.pattern = self.rows.pattern
        # Forked workers that stay see it change.
        self._epoch = mmap.mmap(-1, 8)

    @classmethod
    def from_dict(
        cls,
        recipe: Mapping[str, Any],
        root: str | Path | None = None,
        allow: Iterable[str] = (),
        cache: str | Path | None = None,
    ) -> Self:
        """Make a mixture of a recipe of plain values, as a file of YAML or JSON holds it.

        recipe: this class' arguments, with `sources` by name as descriptions, each with its
        `weight` or none with one: {"web": {"source": "tar", "pattern": "web/*.tar", "weight": 3}}.
        root: where relative paths begin, and all files lie; by default they begin in the current
        folder. allow: names of transforms that are not ours, package.module:function, nor entry
        points. Raises ValueError, with the name of the source, for a recipe that is none.
        """
        sources, settings = open_recipe(recipe, root, tuple(allow), cache)
        return cls(sources, **settings)

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        root: str | Path | None = None,
        allow: Iterable[str] = (),
        cache: str | Path | None = None,
    ) -> Self:
        """Make a mixture of the recipe in a file of YAML, or JSON (.json); see from_dict."""
        return cls.from_dict(read_recipe(path), root, allow, cache)

    @property
    def names(self) -> tuple[str, ...]:
        """The sources' names."""
        return self.rows.recipe.names

    @property
    def epoch(self) -> int:
        """The epoch whose order mixture[i] follows."""
        return int.from_bytes(self._epoch[:8], "little")

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order mixture[i] follows; a balanced loop chooses its own."""
        self._epoch[:8] = epoch.to_bytes(8, "little")

    def __len__(self) -> int:
        return self.rows.recipe.samples()

    def __getitem__(self, index: int) -> Any:
        return self.load(index, self.epoch, self.seed)

    def find_row(self, index: int) -> int:
        """Return the row of the chosen epoch's sample at a place in its order."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is outside of {len(self)} samples")
        now = self.epoch
        if self._ordered is None or self._ordered[0] != now:
            self._ordered = now, self.rows.recipe.order(self.seed, now)
        return int(self._ordered[1][index])

    _ordered: tuple[int, Int64] | None = None

    @property
    def epoch_rows(self) -> MixtureRows:
        """The rows, which balanced loops read in an order of their own."""
        return self.rows

    def data_digest(self, samples: int | None = None) -> str:
        """Return a hash of the sources' data and of all that decides the order."""
        return self.rows.data_digest(samples)

    def find_source(self, key: str) -> str:
        """Return the name of the source that a sample is from, by its key (StepInfo.keys)."""
        return find_source(key)

    def counters(
        self, at: int | Mapping[str, Any], epoch: int = 0, seed: int | None = None
    ) -> dict[str, Begun]:
        """Return where each source stands after an epoch's first samples: (passes, samples).

        at: the number of samples, of `epoch` with the plan's `seed` (Balance(seed=...)); or a
        ledger, what a balanced loader's state_dict() returned between two steps, which says both.
        As JSON counters are small, whatever has been read: Mixture(..., begin=counters) goes on
        there, with other weights, with sources that are new, which begin at 0, and without some
        that were. Raises ValueError for a ledger of another recipe.
        """
        if isinstance(at, Mapping):
            at, epoch, seed = self._read_position(at)
        order = self.rows.recipe.order(self.seed if seed is None else seed, epoch)
        if not 0 <= at <= len(order):
            raise ValueError(f"samples is {at}, and an epoch has {len(order)}")
        return self.rows.recipe.stands_after(order[:at], epoch)

    def _read_position(self, ledger: Mapping[str, Any]) -> tuple[int, int, int]:
        """Return the samples, the epoch and the seed of a ledger."""
        if ledger.get("kind") != "balanced":
            raise ValueError(
                f"this is no ledger of a balanced loader (its kind is {ledger.get('kind')!r:.40}): "
                "give the number of the epoch's samples that were trained on"
            )
        if ledger["data"] != (identity := KnownData(self.rows, len(self)).identity):
            raise ValueError(
                f"the ledger is of other data, {ledger['data']!r}, and this mixture is "
                f"{identity!r}: give the recipe it was saved with, and the counters to the new one"
            )
        if ledger["microbatch"] or ledger["served"] or ledger["step"] != ledger["window_step"]:
            raise ValueError(
                f"the ledger was saved inside step {ledger['step']}, or its window: counters are "
                "of positions between steps of mode 'exact', or between windows"
            )
        return ledger["start"], ledger["epoch"], ledger["seed"]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what only forked processes share."""
        return {**self.__dict__, "_epoch": self.epoch, "_ordered": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        epoch = state.pop("_epoch")
        self.__dict__.update(state)
        self._epoch = mmap.mmap(-1, 8)
        self.set_epoch(epoch)


def _is_pair(source: Any) -> bool:
    return isinstance(source, tuple) and len(source) == 2 and isinstance(source[1], int | float)


def _checked_names(sources: Mapping[str, Any]) -> list[str]:
    if not isinstance(sources, Mapping) or not sources:
        raise ValueError('a mixture needs sources by name: Mixture({"a": (source, 1), ...})')
    for name in sources:
        if not isinstance(name, str) or not name or any(mark in name for mark in MARKS):
            raise ValueError(f"{name!r} cannot name a source: give a text without {MARKS!r}")
        if name in (FIRST, ALL):
            raise ValueError(f"{name!r} says when an epoch ends: give the source another name")
    return list(sources)


def _find_weights(
    names: Sequence[str],
    weights: Sequence[float | None],
    totals: Sequence[int],
    temperature: float | None,
) -> list[float]:
    has = [weight is not None for weight in weights]
    if temperature is not None or not any(has):
        if any(has):
            raise ValueError("weights and temperature contradict each other: leave one of them")
        if temperature is not None and not temperature > 0:
            raise ValueError(f"temperature is {temperature}, it must be positive")
        return [float(total) ** (1 / (temperature or 1.0)) for total in totals]  # or by size
    if not all(has):
        raise ValueError(
            f"source {names[has.index(False)]!r} has no weight, and others have: give one to all"
        )
    return [float(weight) for weight in weights if weight is not None]


def _checked_schedule(
    names: Sequence[str], first: Sequence[float], schedule: Sequence[tuple[int, Weights]]
) -> tuple[tuple[int, np.ndarray], ...]:
    parts = [(0, dict(zip(names, first, strict=True)))]  # the sources' own weights
    for start, weights in schedule:
        if type(start) is not int or start <= parts[-1][0]:
            raise ValueError(
                f"schedule has weights from {start!r} after those from {parts[-1][0]}: give whole "
                "numbers that grow, beyond 0, where the sources' own weights hold"
            )
        parts.append((start, dict(weights)))
    for start, weights in parts:
        if unknown := [name for name in weights if name not in names]:
            raise ValueError(f"schedule names {unknown[0]!r}, sources are {', '.join(names)}")
        bad = [n for n, w in weights.items() if not 0 <= w < float("inf")]
        if bad or not any(weights.values()):
            raise ValueError(
                f"the weights from {start} on are {weights}: give finite numbers that are not "
                "negative, and not all 0"
            )
    return tuple((at, np.array([float(w.get(n, 0)) for n in names])) for at, w in parts)


def _checked_epoch(names: Sequence[str], epoch: int | str) -> int | str:
    if type(epoch) is int and epoch > 0:
        return epoch
    if epoch in (FIRST, ALL, *names) and isinstance(epoch, str):
        return epoch
    raise ValueError(
        f"epoch is {epoch!r}: give a number of samples, {FIRST!r} (the first source that has been "
        f"through ends it), {ALL!r}, or one of the sources, {', '.join(names)}"
    )


def _checked_repeats(names: Sequence[str], repeat: bool | Collection[str]) -> tuple[str, ...]:
    if isinstance(repeat, bool) or repeat == CONTINUE:
        return tuple(names) if repeat else ()
    if isinstance(repeat, str) or not set(repeat) <= set(names):
        raise ValueError(
            f"repeat is {repeat!r}: give True, False, {CONTINUE!r}, or a list of {', '.join(names)}"
        )
    return tuple(name for name in names if name in repeat)


def _checked_begun(name: str, counters: Sequence[int]) -> Begun:
    begun = Begun(*counters)
    if not all(type(number) is int and number >= 0 for number in begun):
        raise ValueError(f"begin of {name!r} is {counters!r}: give what counters() returned")
    return begun


def _check_end(recipe: Recipe) -> None:
    """Raise ValueError for a rule that the sources cannot meet."""
    ends = [name for name in recipe.names if name not in recipe.repeats]
    if recipe.continues and recipe.costs is not None:
        raise ValueError(
            f"repeat={CONTINUE!r} is for mixtures by samples: where an epoch by a cost ends "
            "follows from all before it; give begin=counters(...) to a mixture of the next epoch"
        )
    if recipe.begun and (ends or not isinstance(recipe.epoch, int)):
        raise ValueError(
            "begin= needs sources that repeat, and an epoch of a number of samples: what is left "
            "of a pass is no whole one"
        )
    # A pass that has given all its samples is over: the next one begins at 0.
    for name, begun in recipe.begun.items():
        if begun.samples >= (size := recipe.sizes[recipe.names.index(name)]):
            raise ValueError(f"begin of {name!r} is {begun}, but the source has {size} samples")
    if isinstance(recipe.epoch, int) and not recipe.repeats and recipe.epoch > sum(recipe.sizes):
        raise ValueError(
            f"an epoch of {recipe.epoch} samples, and the sources have {sum(recipe.sizes)}: give "
            "repeat=True, or fewer"
        )
    if recipe.costs is not None and not all(recipe.totals):
        none = recipe.names[int(np.argmin(recipe.totals))]
        raise ValueError(f"the samples of source {none!r} cost nothing: no share of it can be kept")
    recipe.check()


def _find_costs(name: str, part: Source, by: str) -> Int64:
    """Return what each of a source's samples costs of `by`; ValueError where that is not known."""
    why = ""
    if part.decode_first or not part.knows_costs:
        why = "loading them would show it at best"
    elif (table := all_costs(part, [by])) is not None:
        return np.asarray(table[by], np.int64)
    else:
        try:
            probes = (part.known(index) or part.probe(index) for index in range(len(part)))
            return np.array([probe.cost[by] for probe in probes], np.int64)
        except (SampleError, KeyError) as error:
            why = str(error)
    raise ValueError(
        f"a mixture by {by!r} needs to know what all samples cost, and of source {name!r} it does "
        f"not ({why}): give PlainSource(data, cost={{{by!r}: [...]}}), or a source whose "
        f'probe(index) has {by!r}, or mix by="samples"'
    )
