"""`recognise_work`: collates a few microbatches to see what one costs of each resource.

Microbatches of the same sample several times say how large one of the shortest, of the longest and
of samples between is; one that mixes the shortest with the longest says how sizes add up: to the
mean of both (packed), or to the size of the longer (padded). This needs no common unit: samples may
be text and batches tokens. A size that is the same in all of them is no cost.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..sources.randomness import global_randomness
from .costs import FoundCosts
from .fields import SampleField, find_fields
from .finding import FIRST_SAMPLES
from .recognising import Mixed, recognised
from .work import FoundWork

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
    alike = sorted({k for each in costs.values() for k in _spread(each)} | _strided(costs))
    pairs = list(dict.fromkeys(pair for each in costs.values() for pair in _pairs(each)))
    seen = _collated(_Collating(some, collate_fn), alike, pairs, count)
    ordered = {name: [each[k] for k in alike] for name, each in costs.items()}
    return recognised(found, seen, ordered, count)


def _collated(
    collate: _Collating, alike: list[int], pairs: list[tuple[int, int]], count: int
) -> list[Mixed]:
    """Return the sizes of all fields of the batches, in microbatches of `count` samples."""
    half = count // 2
    batches = [collate([k] * count) for k in alike]
    # One sample a batch: nothing is beside it, and only what never varies can be told apart.
    mixed = pairs if half else []
    batches += [collate([one] * half + [two] * (count - half)) for one, two in mixed]
    batches += [collate([k] * count, seed=1) for k in alike[:1] + alike[-1:]]
    fields = [field for field in find_fields(batches, count) if field.kind != "bytes"]
    return [_seen(field, batches, alike, mixed, half / count) for field in fields]


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


def _copy(sample: Any) -> Any:
    try:
        return copy.deepcopy(sample)
    except Exception:  # what cannot be copied is given as it is, as to torch's own loader
        return sample
