"""Deals what was laid out for several microbatches at once to the batch of each.

What a call of numpy or torch costs does not depend on how little it has to do. So the samples of
small microbatches are laid out as if they were those of one, and each batch gets its part: tensors
of their own, on the memory of all. The memory comes back when the last of them is gone.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy.typing as npt
import torch

T = TypeVar("T")


class Parts:
    """The batches of microbatches of these sizes, whose samples come one behind the other.

    `make` makes of an array what is put into a batch.
    """

    def __init__(
        self, sizes: Sequence[int], make: Callable[[npt.NDArray[Any]], Any] = torch.from_numpy
    ) -> None:
        self.make = make
        self.batches: list[dict[str, Any]] = [{} for _ in sizes]
        # The shapes of what has one value for each sample.
        self.one_a_sample: list[tuple[int, ...]] = [(size,) for size in sizes]
        self._slices = [slice(*each) for each in pairwise(accumulate(sizes, initial=0))]

    def of_each(self, values: Sequence[T]) -> Iterator[Sequence[T]]:
        """Return each microbatch's part of what every sample has."""
        return (values[part] for part in self._slices)

    def sums(self, values: Sequence[int]) -> list[int]:
        """Return the sum of each microbatch's part of what every sample has."""
        return [sum(values[part]) for part in self._slices]

    def put(self, name: str, values: Sequence[Any]) -> None:
        """Put one of several values into each batch."""
        for batch, value in zip(self.batches, values, strict=True):
            batch[name] = value

    def deal(self, name: str, array: npt.NDArray[Any], shapes: Sequence[tuple[int, ...]]) -> None:
        """Put what has its shape into each batch: the next elements of a flat array."""
        make, at = self.make, 0
        for batch, shape in zip(self.batches, shapes, strict=True):
            end = at + math.prod(shape)
            batch[name] = make(array[at:end].reshape(shape))
            at = end
