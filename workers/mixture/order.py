"""The order of a source's samples in an epoch: a shuffle, or the source's own."""

from typing import Any

from ...balancer.planning.kernels.arrays import Int64
from ...balancer.planning.problem.shuffle import permutation
from ..sources.interface import Source
from ..sources.offered import whole_parts


def epoch_order(source: Source, seed: int, epoch: int, shuffle: bool) -> Int64:
    """Return the indexes of an epoch's samples in order: of a mixture as it says, else shuffled."""
    if (recipe := source.mixing) is None:
        return permutation(len(source), seed, epoch, shuffle)
    order: Int64 = recipe.order(seed, epoch, shuffle)
    return order


def epoch_samples(source: Source, shuffle: bool) -> int:
    """Return how many samples an epoch has: of a mixture fewer than it has indexes."""
    return len(source) if source.mixing is None else source.mixing.samples(shuffle)


def find_rows(dataset: Any) -> Any:
    """Return what balanced loops read a data set from: a mixture's rows, else itself.

    Raises ValueError for a mixture inside of another data set, which would have it in no order.
    """
    if isinstance(dataset, Source) and dataset.epoch_rows is not dataset:
        return dataset.epoch_rows
    if _holds_mixture(dataset):
        raise ValueError(
            f"a Mixture inside of a {type(dataset).__name__} has no order of its own: wrap its "
            "sources, as in Mixture({'a': (wrapped(data), 3), ...})"
        )
    return dataset


def _holds_mixture(dataset: Any) -> bool:
    if not isinstance(dataset, Source):
        return any(map(_holds_mixture, (p for p in whole_parts(dataset) if isinstance(p, Source))))
    if dataset.mixing is not None:
        return False
    return dataset.epoch_rows is not dataset or any(map(_holds_mixture, dataset.sources))


def find_source(key: str) -> str:
    """Return the name of the source in a key of a mixture.

    >>> find_source("web@2/dir/cat"), find_source("web/dir@2/cat")
    ('web', 'web')
    """
    return key.partition("/")[0].partition("@")[0]
