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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...balancer.planning.problem.options import LLM
from ..sources.randomness import global_randomness
from .costs import FoundCosts, FoundResource, FoundWork, Recognised, ResourceWork, is_of_text
from .fields import SampleField, find_fields
from .finding import FIRST_SAMPLES


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
        kinds = {self._of(*each, unit) for each in self.mixed} - {"constant"} or {"packed"}
        if "padded" in kinds and any(both > max(one, other) for one, other, both in self.close):
            return "unrecognised"
        return kinds.pop() if len(kinds) == 1 else "unrecognised"

    def _of(self, one: int, other: int, both: int, unit: int) -> Recognised:
        if one == other == both:
            return "constant"
        if both == max(one, other) and one != other:
            return "padded"
        apart = abs(both - (self.share * one + (1 - self.share) * other))
        # A sum that is rounded up to a multiple is near the mean, but not on it.
        near = unit if 4 * unit <= abs(one - other) else 0
        return "packed" if apart <= near + 1e-6 else "unrecognised"


def recognised(
    found: FoundCosts, seen: Sequence[Mixed], costs: Mapping[str, Sequence[int]], count: int
) -> FoundWork:
    """Return what each resource is, by the fields of the batches that belong to it.

    costs: for each resource those of the samples that are `alike` in `seen`; count: samples of a
    microbatch. A field belongs to the resource of its name, or to that which it goes with.
    """
    varying = [each for each in seen if each.work != "constant"]
    fields = _numbers_of(found, [e for e in varying if e.field.kind != "text"], costs)
    # Strings that a batch has are what a loop tokenizes itself, unless it has tokens already.
    written = [each for each in found.found if is_of_text(each) and not fields[each.name]]
    if LLM not in fields and written:
        for each in varying:
            if each.field.kind == "text":
                fields[_owner(each, written, costs).name].append(each)
    return FoundWork(tuple(_work(name, fields[name], costs[name], count) for name in fields))


def _numbers_of(
    found: FoundCosts, varying: Sequence[Mixed], costs: Mapping[str, Sequence[int]]
) -> dict[str, list[Mixed]]:
    """Return for each resource the fields of the batches that belong to it."""
    fields: dict[str, list[Mixed]] = {each.name: [] for each in found.found}
    written = [each for each in found.found if is_of_text(each)]
    for each in varying:
        owner = _owner(each, found.found, costs)
        # Tokens are made of all texts of a sample together.
        for one in written if owner in written else [owner]:
            fields[one.name].append(each)
    return fields


def _owner(
    each: Mixed, resources: Sequence[FoundResource], costs: Mapping[str, Sequence[int]]
) -> FoundResource:
    """Return the resource of a field's name, else that which its sizes follow most nearly."""
    last = each.field.last
    for one in resources:
        # The first thing of a sample need not be the first thing of a batch.
        if not last.isdigit() and last in [name.rpartition(".")[2] for name in one.fields]:
            return one
    scores = [_goes_with(each.alike, costs[one.name]) for one in resources]
    return resources[int(np.argmax(scores))]


def _goes_with(sizes: Sequence[int], costs: Sequence[int]) -> float:
    """Return how nearly sizes follow costs, from -1 to 1, in steps that are alike everywhere."""
    if len(set(sizes)) == 1 or len(set(costs)) == 1:
        return -1.0
    return round(float(np.corrcoef(sizes, costs)[0, 1]), 6)


def _work(name: str, fields: Sequence[Mixed], costs: Sequence[int], count: int) -> ResourceWork:
    if not fields:
        return ResourceWork(name, "constant")
    largest: dict[Recognised, int] = {}
    for each in fields:
        largest[each.work] = largest.get(each.work, 0) + sum(each.alike)
    work = max(largest, key=lambda kind: largest[kind])
    if work != "padded":
        return ResourceWork(name, work)
    for each in fields:
        if each.work == "padded" and (found := rounding([*each.alike], costs, count)):
            return ResourceWork(name, work, *found)
    return ResourceWork(name, work)


def rounding(
    sizes: Sequence[int], costs: Sequence[int], count: int
) -> tuple[int, int | None] | None:
    """Return the multiple that rows are filled up to, and the most that they have; None: neither.

    >>> rounding([16, 32, 48, 48], [3, 9, 20, 30], 2)
    (8, 24)
    """
    rows = [size // count for size in sizes]
    if any(size % count for size in sizes) or not any(rows):
        return None
    most = max(rows)
    # The smallest that explains all sizes: a larger one would fit by chance.
    common = math.gcd(*rows)
    for multiple in [k for k in range(1, min(common, 4096) + 1) if common % k == 0]:
        filled = [-(-cost // multiple) * multiple for cost in costs]
        if filled == rows:
            return multiple, None
        if [min(size, most) for size in filled] == rows and max(filled) > most:
            return multiple, most
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
                return self.collate_fn(chosen)
            except Exception as error:
                shown = ", ".join(map(str, dict.fromkeys(ordinals)))
                raise ValueError(
                    f"collate_fn raised {type(error).__name__}: {error!s:.300} for the samples "
                    f"{shown} of the epoch's order, collated to see whether batches are padded: "
                    'mend it, or say what batches are with Balance("auto", work="padded") or '
                    'work="packed", and nothing is collated beforehand'
                ) from error


def recognise_work(
    found: FoundCosts,
    samples: Sequence[Any],
    collate_fn: Callable[[list[Any]], Any],
    batch_size: int = MOST_COLLATED,
) -> FoundWork:
    """Return what a microbatch costs of each resource, from microbatches of the first samples.

    samples: those that the costs were found in. Global generators are as before afterwards, and
    samples are not changed. Where collate_fn draws sizes at random, or sizes are neither a sum nor
    count x largest, the resource is "unrecognised". Raises ValueError, with the ordinals, where
    collate_fn does.
    """
    if not found.found:
        return FoundWork(())
    some = [samples[k] for k in range(min(len(samples), FIRST_SAMPLES))]
    costs = {each.name: [each.cost(sample) for sample in some] for each in found.found}
    count = max(1, min(batch_size, MOST_COLLATED))
    # Alike: batches of one sample many times, which show what its size becomes; pairs: two samples
    # that differ, which show whether the shorter is filled up.
    pairs = list(dict.fromkeys(pair for each in costs.values() for pair in _pairs(each)))
    close = list(dict.fromkeys(pair for each in costs.values() for pair in _close(each)))
    shown = {k for each in costs.values() for k in _spread(each)} | _strided(costs)
    alike = sorted(shown | {k for pair in close for k in pair})
    seen = _collated(_Collating(some, collate_fn), alike, pairs, close, count)
    ordered = {name: [each[k] for k in alike] for name, each in costs.items()}
    return recognised(found, seen, ordered, count)


def _collated(
    collate: _Collating,
    alike: list[int],
    pairs: list[tuple[int, int]],
    close: list[tuple[int, int]],
    count: int,
) -> list[Mixed]:
    """Return the sizes of all fields of the batches, in microbatches of `count` samples."""
    half = count // 2
    batches = [collate([k] * count) for k in alike]
    # One sample a batch: nothing is beside it, and only what never varies can be told apart.
    mixed = [*pairs, *close] if half else []
    batches += [collate([one] * half + [two] * (count - half)) for one, two in mixed]
    batches += [collate([k] * count, seed=1) for k in alike[:1] + alike[-1:]]
    fields = [field for field in find_fields(batches, count) if field.kind != "bytes"]
    seen = [_seen(field, batches, alike, mixed, half / count) for field in fields]
    ends = len(pairs) if half else 0
    return [replace(each, mixed=each.mixed[:ends], close=each.mixed[ends:]) for each in seen]


def _seen(
    field: SampleField,
    batches: list[Any],
    alike: list[int],
    pairs: list[tuple[int, int]],
    share: float,
) -> Mixed:
    """Return the sizes of a field in all batches; `share` of a mixed one is of the first sample."""
    sizes = [field.size(batch) for batch in batches]
    of_one = dict(zip(alike, sizes, strict=False))
    triples = [
        (of_one[one], of_one[two], size)
        for (one, two), size in zip(pairs, sizes[len(alike) :], strict=False)
    ]
    again = [of_one[k] for k in alike[:1] + alike[-1:]]
    return Mixed(field, sizes[: len(alike)], triples, share, again != sizes[-len(again) :])


def _spread(costs: list[int]) -> Iterator[int]:
    """Yield the samples at the eighths of the costs, shortest and longest included."""
    order = sorted(range(len(costs)), key=costs.__getitem__)
    last = len(order) - 1
    yield from (order[last * part // _PARTS] for part in range(_PARTS + 1))


def _strided(costs: dict[str, list[int]]) -> set[int]:
    """Return some samples whatever they cost: of several resources they tell what is of which."""
    count = len(next(iter(costs.values())))
    return set(range(0, count, max(1, count // 8))) if len(costs) > 1 else set()


def _pairs(costs: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the pairs to mix: the longest with the shortest, and with the one in the middle."""
    found = list(_spread(costs))
    yield found[0], found[-1]
    yield found[_PARTS // 2], found[-1]


def _close(costs: list[int]) -> Iterator[tuple[int, int]]:
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
