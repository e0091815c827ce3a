"""The rows of a sequence that ranks divide, gathered and scattered in chunks of tokens."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from ..execution.walk import offer


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """How the tokens of a tensor (..., tokens, ..., features) are divided, and cut into chunks.

    before, after: the dimensions around the tokens. tokens: of each chunk, of one rank.

    In order, rows stand as in the tensor: (before, ranks, tokens of a rank, after). By chunk they
    are (ranks, before, tokens of the chunk, after), one chunk after the other.
    """

    group: dist.ProcessGroup
    ranks: int
    before: tuple[int, ...]
    tokens: tuple[int, ...]
    after: tuple[int, ...]

    @classmethod
    def from_part(cls, tensor: Tensor, mesh: DeviceMesh, dim: int, chunks: int, parts: int) -> Self:
        """Describe what all ranks have, of which so many ranks' parts, of one size, are given.

        Raises ValueError where the tokens do not divide evenly.
        """
        shape = tuple(tensor.shape)
        if isinstance(tensor, DTensor):
            raise TypeError(
                "a layer that overlaps takes and gives plain tensors, got a DTensor: have what is "
                "before it return local ones (use_local_output=True)"
            )
        if not -len(shape) <= dim < len(shape) or dim % len(shape) == len(shape) - 1:
            raise ValueError(f"sequence_dim={dim} has no tokens in a tensor of shape {shape}")
        dim %= len(shape)
        tokens, remainder = divmod(shape[dim], parts)
        if remainder:
            raise ValueError(
                f"{shape[dim]} tokens (dimension {dim} of {shape}) do not divide by {parts} "
                "processes: pad the sequence, as Balance(align=...) does"
            )
        used = max(1, min(chunks, tokens))
        sizes = tuple(tokens * (n + 1) // used - tokens * n // used for n in range(used))
        return cls(mesh.get_group(), mesh.size(), shape[:dim], sizes, shape[dim + 1 : -1])

    def gather_product(
        self, part: Tensor, matrix: Tensor, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Gather a part's rows; return all of them by chunk, and their products in order.

        matrix: (features, outputs), bias: (outputs,). Each chunk is multiplied when it is there.
        """
        width = part.shape[-1]
        before, after = math.prod(self.before), math.prod(self.after)
        parts = torch.split(part.reshape(before, -1, after, width), [*self.tokens], 1)
        rows = part.new_empty(self.ranks * before * sum(self.tokens) * after, width)
        chunks = self.split_chunks(rows)
        works = [
            dist.all_gather_into_tensor(
                chunk, own_rows.reshape(-1, width), group=self.group, async_op=True
            )
            for chunk, own_rows in zip(chunks, parts, strict=True)
        ]
        products = (_product(chunk, matrix, bias) for chunk in _arriving(works, chunks))
        return rows, self.in_order(products)

    def scatter_product(self, whole: Tensor, matrix: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        """Multiply all rows, and begin to scatter the ranks' sum.

        Return the rows by chunk, and what waits for this rank's part. Each chunk's collective is
        under way while the next one is multiplied.
        """
        rows = self.by_chunk(whole)
        works, sums = [], []
        for chunk in self.split_chunks(rows):
            product = _product(chunk, matrix)
            part = product.new_empty(len(product) // self.ranks, product.shape[-1])
            works.append(dist.reduce_scatter_tensor(part, product, group=self.group, async_op=True))
            sums.append(part)

        def wait() -> Tensor:
            offer()
            for work in works:
                work.wait()
            before, after = math.prod(self.before), math.prod(self.after)
            parts = [
                part_sum.view(before, size, after, -1)
                for part_sum, size in zip(sums, self.tokens, strict=True)
            ]
            joined = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
            return joined.view(*self.before, sum(self.tokens), *self.after, -1)

        return rows, wait

    def split_chunks(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the chunks of rows that are by chunk."""
        around = self.ranks * math.prod(self.before) * math.prod(self.after)
        return torch.split(rows, [around * size for size in self.tokens])

    def by_chunk(self, whole: Tensor) -> Tensor:
        """Return all rows of a tensor by chunk."""
        width = whole.shape[-1]
        if self._is_one:
            return whole.reshape(-1, width)
        before, after = math.prod(self.before), math.prod(self.after)
        parts = torch.split(whole.reshape(before, self.ranks, -1, after, width), [*self.tokens], 2)
        return torch.cat([part.transpose(0, 1).reshape(-1, width) for part in parts])

    def in_order(self, products: Iterable[Tensor]) -> Tensor:
        """Return rows that come by chunk as one tensor: each is copied to its place in turn."""
        shape = *self.before, self.ranks * sum(self.tokens), *self.after, -1
        if self._is_one:
            (product,) = products
            return product.view(shape)
        before, after = math.prod(self.before), math.prod(self.after)
        ordered, begin = None, 0
        for product, size in zip(products, self.tokens, strict=True):
            if ordered is None:
                ordered = product.new_empty(
                    before, self.ranks, sum(self.tokens), after, product.shape[-1]
                )
            placed = product.view(self.ranks, before, size, after, -1).transpose(0, 1)
            ordered[:, :, begin : begin + size] = placed
            begin += size
        assert ordered is not None
        return ordered.view(shape)

    @property
    def _is_one(self) -> bool:
        """Whether rows by chunk are in order."""
        return len(self.tokens) == 1 and math.prod(self.before) == 1


def _product(rows: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    return rows @ matrix if bias is None else torch.addmm(bias, rows, matrix)


def _arriving(works: Sequence[dist.Work], chunks: Sequence[Tensor]) -> Iterator[Tensor]:
    offer()  # before the first chunk, the only one that nothing is multiplied beside
    for work, chunk in zip(works, chunks, strict=True):
        work.wait()
        yield chunk
