"""`recognise_work`: collates a few microbatches to see what one costs of each resource.

Microbatches of the same sample several times say how large one of the shortest, of the longest and
of samples between is; one that mixes the shortest with the longest says how sizes add up: to the
mean of both (packed), or to the size of the longer (padded). Two that are nearly as large as each
other must give no more than the larger: pictures that are padded in height and in width do. This
needs no common unit: samples may be text and batches tokens. A size that is the same in all of them
is no cost.

What each resource is follows from the sizes alone.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...balancer.planning.problem.options import LLM
from ..sources.randomness import global_randomness
from .costs import FoundCosts, FoundWork, Recognised, ResourceWork
from .fields import SampleField, find_fields
from .finding import FIRST_SAMPLES, TOKEN_IDS

# Of fields that follow a cost less nearly it is not said that they are its own: of two that have
# nothing to do with each other one in fifty looks so.
LEAST_ALIKE = 0.6


@dataclass(frozen=True, slots=True)
class Mixed:
    """The sizes that a field of the batches has.

    alike: in microbatches of one sample again and again; mixed: (of one, of another, of both mixed)
    with the share of the first; close: the same of samples that cost nearly the same; drawn:
    whether the same samples have another size next time.
    """

    field: SampleField
    alike: Sequence[int]
    mixed: Sequence[tuple[int, int, int]]
    share: float
    drawn: bool
    close: Sequence[tuple[int, int, int]] = ()

    @property
    def work(self) -> Recognised:
        """The work of the field, by all mixed microbatches together.

        >>> field = SampleField((), "numbers")
        >>> Mixed(field, (2, 8), [(2, 8, 8)], 0.5, False).work
        'padded'
        >>> Mixed(field, (2, 8), [(2, 8, 5)], 0.5, False).work
        'packed'
        >>> Mixed(field, (2, 8), [(2, 8, 8)], 0.5, False, close=[(7, 8, 12)]).work
        'unrecognised'
        """
        if self.drawn:
            return "unrecognised"
        sizes = {*self.alike, *(size for triple in self.mixed for size in triple)}
        if len(sizes) == 1:
            return "constant"
        unit = math.gcd(*sizes)
        # Microbatches of one sample add up to whatever it is.
        kinds = {self._recognise_mix(*triple, unit) for triple in self.mixed} - {"constant"}
        kinds = kinds or {"packed"}
        if "padded" in kinds and any(both > max(pair) for *pair, both in self.close):
            return "unrecognised"
        return kinds.pop() if len(kinds) == 1 else "unrecognised"

    def _recognise_mix(self, first: int, second: int, both: int, unit: int) -> Recognised:
        if first == second == both:
            return "constant"
        if both == max(first, second) and first != second:
            return "padded"
        apart = abs(both - (self.share * first + (1 - self.share) * second))
        # A sum that is rounded up to a multiple is near the mean, but not on it.
        near = unit if 4 * unit <= abs(first - second) else 0
        return "packed" if apart <= near + 1e-6 else "unrecognised"


@dataclass(frozen=True, slots=True)
class _Resource:
    """What the samples cost of a resource, by their number, and the names of its fields in them.

    is_text: whether it is measured in characters, of which a batch's tokens are made.
    """

    name: str
    costs: Sequence[int]
    fields: tuple[str, ...]
    is_text: bool = False

    def has(self, last: str) -> bool:
        """Return whether a field of that name is the resource's; positions are no names."""
        return not last.isdigit() and last in self.fields


def _collect_resources(
    costs: FoundCosts | Mapping[str, Sequence[int]], samples: Sequence[Any]
) -> list[_Resource]:
    if isinstance(costs, FoundCosts):
        return [
            _Resource(
                resource.name,
                [resource.cost(sample) for sample in samples],
                tuple(name.rpartition(".")[2] for name in resource.fields),
                resource.field.is_text,
            )
            for resource in costs.found
        ]
    return [
        _Resource(name, column, (name, TOKEN_IDS) if name == LLM else (name,))
        for name, column in costs.items()
    ]


def recognise_resources(
    resources: Sequence[_Resource], seen: Sequence[Mixed], alike: Sequence[int], count: int
) -> FoundWork:
    """Return what each resource is, by the fields of the batches that belong to it.

    alike: the samples that are `alike` in `seen`; count: samples of a microbatch. A field belongs
    to the resource of its name, else to that which its sizes follow most nearly. Of the fields of
    a resource those count that follow it best: ids, and not the pictures' patches, which are more.
    One that follows none belongs to none, and a resource without any is not recognised beside it.
    """
    varying = [mixed for mixed in seen if mixed.work != "constant"]
    costs = {resource.name: [resource.costs[k] for k in alike] for resource in resources}
    # Tokens are made of all texts of a sample together.
    texts = [resource.name for resource in resources if resource.is_text]
    whole = [sum(row) for row in zip(*(costs[name] for name in texts), strict=True)]
    follows: dict[str, list[tuple[float, Mixed]]] = {name: [] for name in costs}
    is_lost = False
    for mixed in varying:
        scores = {name: _correlate(mixed, column, count) for name, column in costs.items()}
        scores |= {resource.name: 2.0 for resource in resources if resource.has(mixed.field.last)}
        name = max(scores, key=scores.__getitem__)
        of_texts = _correlate(mixed, whole, count) if texts else 0.0
        owners = [name]
        if name in texts or of_texts > scores[name]:
            owners = texts
            scores[name] = max(scores[name], of_texts)
        # Strings that a batch has are what a loop tokenizes itself, and may pad then.
        score = scores[name] - 3.0 * (mixed.field.kind == "text")
        if scores[name] < LEAST_ALIKE:
            is_lost |= mixed.field.kind != "text"
            continue
        for owner in owners:
            follows[owner].append((score, mixed))
    works = (_find_work(name, follows[name], costs[name], count, is_lost) for name in follows)
    return FoundWork(tuple(works))


def _correlate(mixed: Mixed, costs: Sequence[int], count: int) -> float:
    """Return how nearly sizes follow costs, from -1 to 1; 1 too where they are rounded or cut."""
    if len(set(mixed.alike)) == 1 or len(set(costs)) == 1:
        return -1.0
    if find_rounding(mixed.alike, costs, count):
        return 1.0
    # By their order, too: of one huge sample that is cut nothing else would be seen.
    ranks = [np.unique(column, return_inverse=True)[1] for column in (mixed.alike, costs)]
    both = (np.corrcoef(*pair)[0, 1] for pair in ((mixed.alike, costs), ranks))
    return round(float(max(both)), 2)


def _find_work(
    name: str, follows: Sequence[tuple[float, Mixed]], costs: Sequence[int], count: int,
    is_lost: bool,
) -> ResourceWork:  # fmt: skip
    """Return a resource's work by the fields that follow it best; is_lost: some follow nothing."""
    if not follows:
        return ResourceWork(name, "unrecognised" if is_lost else "constant")
    best = max(score for score, _ in follows)
    followers = [mixed for score, mixed in follows if score == best]
    if best < 0:
        return ResourceWork(name, "unrecognised")
    largest: dict[Recognised, int] = {}
    for mixed in followers:
        largest[mixed.work] = largest.get(mixed.work, 0) + sum(mixed.alike)
    work = max(largest, key=lambda kind: largest[kind])
    for mixed in followers if work in ("padded", "packed") else ():
        sizes = find_rounding(mixed.alike, costs, count) or (1, 0, _find_cut(mixed.alike, costs))
        if mixed.work == work and sizes != (1, 0, None):
            # A sum is rounded up as a whole, if at all.
            return ResourceWork(name, work, sizes[0] if work == "padded" else 1, *sizes[1:])
    return ResourceWork(name, work)


def _find_cut(sizes: Sequence[int], costs: Sequence[int]) -> int | None:
    """Return about where samples are cut whose costs are in another unit: texts' characters.

    >>> _find_cut([5, 11, 15, 15, 15], [20, 41, 64, 80, 150]), _find_cut([5, 11, 15], [20, 41, 150])
    (57, None)
    """
    most = max(sizes)
    pairs = [*zip(sizes, costs, strict=True)]
    top, below = ([c for s, c in pairs if (s == most) == is_top] for is_top in (True, False))
    if len({*top}) < 2 or not sum(below):
        return None
    limit = max(1, most * sum(below) // sum(s for s in sizes if s < most))
    # Two texts may have as many tokens by chance, three hardly.
    is_sure = len({*top}) > 2 or max(top) > 1.2 * limit
    # Of texts that are just not cut some have more characters than some that just are.
    return limit if is_sure and max(top) > limit and np.median(top) > max(below) else None


def find_rounding(
    sizes: Sequence[int], costs: Sequence[int], count: int
) -> tuple[int, int, int | None] | None:
    """Return how rows follow from costs; None if they do not.

    That is the multiple that rows are filled up to, the tokens that each has more than its cost,
    and the most that they have: the smallest that explain all sizes, larger ones fit by chance.

    >>> find_rounding([16, 32, 48, 48], [3, 9, 20, 30], 2)
    (8, 0, 24)
    >>> find_rounding([10, 22, 40, 40], [3, 9, 20, 30], 2)
    (1, 2, 20)
    """
    if any(size % count for size in sizes) or not any(sizes):
        return None
    whole = math.gcd(*sizes) // count
    # Tensors of one shape in a list are several wide; less: inputs without the last token.
    for width, less in ((k, less) for k in (1, 2, 3) for less in (0, 1) if whole % k == 0):
        rows = [size // count // width + less for size in sizes]
        most, common, fits = max(rows), math.gcd(*rows), list[tuple[int, int, bool]]()
        for multiple in (k for k in range(1, min(common, 4096) + 1) if common % k == 0):
            lacks = [row - multiple + 1 - cost for row, cost in zip(rows, costs, strict=True)]
            for extras in (lacks, [k for k, row in zip(lacks, rows, strict=True) if row < most]):
                extra = max([0, *extras])
                filled = [-(-(cost + extra) // multiple) * multiple for cost in costs]
                if [min(size, most) for size in filled] == rows:
                    fits.append((extra, multiple, max(filled) > most))
        if fits:
            extra, multiple, is_cut = min(fits)
            return multiple, extra, most if is_cut else None
    return None


# Samples of a collated microbatch, at most: enough to tell a sum from count x largest.
MOST_COLLATED = 4
# Microbatches of one sample again and again: the shortest, the longest, and those between them.
_PARTS = 8


@dataclass(frozen=True, slots=True)
class _Collating:
    """Makes microbatches of samples, each a copy, since collate functions change what they get."""

    samples: Sequence[Any]
    collate_fn: Callable[[list[Any]], Any]

    def __call__(self, ordinals: list[int], seed: int = 0) -> Any:
        """Return the batch of some samples; the global generators are as they were after it."""
        chosen = [_copy(self.samples[ordinal]) for ordinal in ordinals]
        with global_randomness(seed, 0, "collate"):
            try:
                batch = self.collate_fn(chosen)
            except Exception as error:
                shown = ", ".join(map(str, dict.fromkeys(ordinals)))
                is_torchs = getattr(self.collate_fn, "__name__", "") == "default_collate"
                mend = "give a collate_fn that pads" if is_torchs else "mend it"
                raise ValueError(
                    f"collate_fn raised {type(error).__name__}: {error!s:.300} for the samples "
                    f"{shown} of the epoch's order, collated to see whether batches are padded: "
                    f'{mend}, or say what batches are with Balance("auto", work="padded") or '
                    'work="packed", and nothing is collated beforehand'
                ) from error
        if batch is None:
            raise ValueError("collate_fn returned None: let it return the batch")
        return batch


def recognise_work(
    costs: FoundCosts | Mapping[str, Sequence[int]],
    samples: Sequence[Any],
    collate_fn: Callable[[list[Any]], Any],
    batch_size: int = MOST_COLLATED,
) -> FoundWork:
    """Return what a microbatch costs of each resource, from microbatches of the first samples.

    costs: those that were found in the samples, or by name what a table or a probe says of each.
    Global generators are as before afterwards, and samples are not changed. A resource is
    "unrecognised" where collate_fn draws sizes at random, where they are neither a sum nor count x
    largest, where batches hold texts that are tokenized later, and where nothing in them follows
    it. Raises ValueError, with the ordinals, where collate_fn does.
    """
    first_samples = [samples[k] for k in range(min(len(samples), FIRST_SAMPLES))]
    resources = _collect_resources(costs, first_samples)
    if not resources:
        return FoundWork(())
    columns = [resource.costs for resource in resources]
    count = max(1, min(batch_size, MOST_COLLATED))
    half = count // 2
    # Two samples that differ show whether the shorter is filled up. With one sample a batch nothing
    # is beside it, and only what never varies can be told apart.
    columns_mixed = columns if half else []
    pairs = list(dict.fromkeys(pair for column in columns_mixed for pair in _yield_pairs(column)))
    close = list(dict.fromkeys(pair for column in columns_mixed for pair in _yield_close(column)))
    mixed = [*pairs, *close]
    # Batches of one sample many times show what its size becomes.
    alike = sorted(set[int]().union(*map(telling_samples, columns), *close))
    ends = [alike[0], alike[-1]]
    collate = _Collating(first_samples, collate_fn)
    batches = [collate([k] * count) for k in alike]
    batches += [collate([first] * half + [second] * (count - half)) for first, second in mixed]
    batches += [collate([k] * count, seed=1) for k in ends]
    seen = list[Mixed]()
    for field in find_fields(batches, count):
        if field.kind == "bytes":
            continue
        sizes = [field.size(batch) for batch in batches]
        alone, sums = dict(zip(alike, sizes, strict=False)), sizes[len(alike) : -2]
        triples = [(alone[a], alone[b], both) for (a, b), both in zip(mixed, sums, strict=True)]
        is_drawn = [alone[k] for k in ends] != sizes[-2:]
        of_pairs, of_close = triples[: len(pairs)], triples[len(pairs) :]
        seen.append(Mixed(field, sizes[: len(alike)], of_pairs, half / count, is_drawn, of_close))
    return recognise_resources(resources, seen, alike, count)


def telling_samples(costs: Sequence[int]) -> set[int]:
    """Return which samples show how a batch follows from costs: short and long ones.

    Beside the eighths those of each remainder by 8, which show how rows are rounded up; short ones,
    since long ones may be cut.
    """
    unit = math.gcd(*costs) or 1
    order = sorted(range(len(costs)), key=costs.__getitem__, reverse=True)
    return {*_yield_spread(costs), *{costs[k] // unit % 8: k for k in order}.values()}


def _yield_spread(costs: Sequence[int]) -> Iterator[int]:
    """Yield the samples at the eighths of the costs, shortest and longest included."""
    order = sorted(range(len(costs)), key=costs.__getitem__)
    last = len(order) - 1
    yield from (order[last * part // _PARTS] for part in range(_PARTS + 1))


def _yield_pairs(costs: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the pairs to mix: the longest with the shortest, and with the one in the middle."""
    spread = list(_yield_spread(costs))
    yield spread[0], spread[-1]
    yield spread[_PARTS // 2], spread[-1]


def _yield_close(costs: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield pairs of samples that cost nearly the same, but not the same: the longest, and others.

    Of pictures whose heights and widths differ one hardly ever fits into the other then.
    """
    order = sorted(range(len(costs)), key=costs.__getitem__)
    last = len(order) - 1
    for place in (last * part // _PARTS for part in range(_PARTS, 0, -2)):
        less = next((k for k in range(place, -1, -1) if costs[order[k]] < costs[order[place]]), -1)
        if less >= 0:
            yield order[less], order[place]


def _copy(sample: Any) -> Any:
    try:
        return copy.deepcopy(sample)
    except Exception:  # what cannot be copied is given as it is, as to torch's own loader
        return sample
