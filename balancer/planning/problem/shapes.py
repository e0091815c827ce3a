"""Padding: samples padded to a multiple, and microbatches padded to one of a few sizes.

Some kernels want each sample's length to be a multiple (of 16 in FP8, of 2 x cp under context
parallelism); compilers and CUDA graphs want few shapes. Padding is computed like anything else, so
it is work: a sample costs its length rounded up, and a microbatch costs the bucket it is padded to.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..kernels.arrays import Int64
from .costs import MAX_COST
from .layout import as_layout
from .values import Shapes

# The resource that cp, and buckets by their number, are about, and that layouts can pad.
TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class Padding:
    """How samples and microbatches are padded, by resource.

    multiples: each sample is padded to a multiple of so much. buckets: each microbatch is padded to
    the first of these sizes, ascending, that holds it.
    """

    multiples: Mapping[str, int] = field(default_factory=dict)
    buckets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def collate_arguments(self) -> dict[str, Any]:
        """Return the arguments align and length of collate_packed and collate_padded.

        >>> Padding({"tokens": 16}, {"tokens": (32, 64)}).collate_arguments()
        {'align': 16, 'length': (32, 64)}
        """
        named = {"align": self.multiples.get(TOKENS), "length": self.buckets.get(TOKENS)}
        return {name: value for name, value in named.items() if value}


class Sizing(NamedTuple):
    """How the costs of a microbatch follow from its samples', by column.

    padded: columns of which it costs count x largest. multiples, buckets: pairs of a column and
    what Padding has of it. shared: columns of which it has its samples' one value.

    >>> Sizing(multiples=((0, 8),), buckets=((0, (16, 32)),)).total(np.array([[3], [9]]))
    ((32,), (20,))
    >>> Sizing(padded=(0,)).total(np.array([(5, 1), (3, 2)]))
    ((10, 3), (2, 0))
    """

    padded: tuple[int, ...] = ()
    multiples: tuple[tuple[int, int], ...] = ()
    buckets: tuple[tuple[int, tuple[int, ...]], ...] = ()
    shared: tuple[int, ...] = ()

    def total(self, rows: Int64) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return what a microbatch of samples (n, resources) costs, and what of it is padding."""
        real = rows.sum(axis=0)
        if not any(self):  # most plans: it is asked for each microbatch
            return tuple(real.tolist()), (0,) * len(real)
        rows = self.rounded(rows)
        sums = rows.sum(axis=0) if self.multiples else real.copy()
        for column in self.shared:
            real[column] = sums[column] = rows[:, column].max(initial=0)
        for column in self.padded if len(rows) else ():
            sums[column] = len(rows) * rows[:, column].max()
        sums = self.bucketed(sums[None])[0]
        return tuple(sums.tolist()), tuple((sums - real).tolist())

    def rounded(self, costs: Int64) -> Int64:
        """Return costs (n, resources) rounded up to multiples: the same array if there are none."""
        if self.multiples:
            costs = costs.copy()
        for column, multiple in self.multiples:
            costs[:, column] += -costs[:, column] % multiple
        return costs

    def bucketed(self, loads: Int64) -> Int64:
        """Return sums (groups, resources) with the bucket of each; the same array without buckets.

        What holds nothing stays 0, and what is above the largest bucket as it is.
        """
        if self.buckets:
            loads = loads.copy()
        for column, borders in self.buckets:
            sums = loads[:, column]
            next_one = np.append(borders, 0)[np.searchsorted(borders, sums)]
            loads[:, column] = np.where(sums > 0, np.maximum(sums, next_one), 0)
        return loads


def resolve_padding(shapes: Shapes, budgets: Mapping[str, int]) -> Padding:
    """Return the multiples and buckets that the shapes of a Balance ask for.

    So many buckets of tokens are evenly spaced up to their budget. Raises ValueError for sizes that
    are no multiple of what samples are padded to, and for budgets other than the largest bucket.

    >>> resolve_padding(Shapes(16, cp=4, buckets=4), {"tokens": 4096})
    Padding(multiples={'tokens': 16}, buckets={'tokens': (1024, 2048, 3072, 4096)})
    """
    multiples, count = shapes.multiples, shapes.buckets
    sizes = {} if isinstance(count, int) else {n: tuple(sizes) for n, sizes in count.items()}
    if isinstance(count, int):
        if TOKENS not in budgets:
            raise ValueError(
                f"buckets is {count}, lengths of up to the budget of tokens, and there is none: "
                "give budgets={'tokens': 4096}, or the buckets themselves"
            )
        most, multiple = budgets[TOKENS], multiples.get(TOKENS, 1)
        inner = {most * k // count // multiple * multiple for k in range(1, count)}
        sizes[TOKENS] = tuple(sorted((inner - {0}) | {most}))
    for name, lengths in sizes.items():
        _check_sizes(name, lengths, multiples.get(name, 1), budgets.get(name))
    return Padding(multiples, sizes)


def against_padding(padding: Padding, rules: Any) -> Iterator[str]:
    """Yield what other options of a Balance, `rules`, say against its padding."""
    by = as_layout(rules.layout)
    for option, names in (("align", padding.multiples), ("buckets", padding.buckets)):
        unpadded = [name for name in names if by is not None and not (by.base and name == TOKENS)]
        if by and unpadded:
            pads = "tokens alone" if by.base else "nothing, as it has no base"
            yield (
                f"{option} pads {unpadded[0]}, and layout {by.name!r} pads {pads}: leave "
                f"{unpadded[0]} out"
            )
    no_work = {**padding.multiples, **padding.buckets, **rules.budgets, **(rules.time_ns or {})}
    if rules.bucket_by in no_work:
        yield (
            f"shapes: bucket_by is {rules.bucket_by!r}, whose values tell shapes apart and are no "
            f"work: leave {rules.bucket_by} out of budgets, work, align and buckets"
        )
    if not padding.buckets:
        return
    if rules.bucket_by is not None:
        yield (
            f"shapes: bucket_by is {rules.bucket_by!r}, and buckets pad microbatches of many "
            "lengths: leave one of them out"
        )
    if rules.is_padded or (by is not None and by.base != "packed"):
        yield (
            "buckets are of microbatches whose samples are concatenated, and work or layout is "
            "'padded', where both rows and their length vary: use layout 'packed', or shapes=128, "
            "which leaves few lengths"
        )
    if rules.grouping in ("fixed", "auto"):
        yield (
            "buckets are of microbatches that fill budgets, and grouping is "
            f"{rules.grouping!r}: use grouping 'balanced'"
        )
    if rules.oversize == "alone":
        yield (
            "oversize is 'alone', and a sample over budget would have a shape of its own beside "
            "buckets: use oversize 'refuse' or 'error'"
        )


def against_columns(
    resources: Sequence[str],
    multiples: Sequence[tuple[str, int]],
    buckets: Sequence[tuple[str, tuple[int, ...]]],
) -> Iterator[str]:
    """Yield what is wrong with shapes: of what samples do not cost, and sizes that are none."""
    aligned = [(name, (multiple,)) for name, multiple in multiples]
    for option, pairs in (("align (or cp)", aligned), ("buckets", buckets)):
        for name, sizes in pairs:
            if name not in resources:
                yield (
                    f"{option} names {name}, but samples cost {', '.join(resources)}: let cost "
                    "count what is padded under that name"
                )
            if not sizes or sizes[0] < 1 or sizes[-1] > MAX_COST or [*sizes] != sorted({*sizes}):
                yield (
                    f"{option} of {name} is {sizes}, allowed are ascending numbers from 1 to 2**40"
                )


def _check_sizes(name: str, sizes: tuple[int, ...], multiple: int, budget: int | None) -> None:
    if budget is not None and sizes[-1] != budget:
        raise ValueError(
            f"the largest bucket of {name} is {sizes[-1]}, and its budget {budget}: microbatches "
            "are padded to the one and may not exceed the other; leave the budget out"
        )
    for size in sizes:
        if size % multiple:
            below = size // multiple * multiple
            raise ValueError(
                f"microbatches are padded to {size} {name}, and samples to multiples of "
                f"{multiple} (align, 2 x cp): use {f'{below} or ' if below else ''}"
                f"{below + multiple}"
            )
