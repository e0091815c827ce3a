"""Compute logits of a shard in pieces, so that single-precision copies of them stay small.

A piece has some tokens and all columns of the shard where every token needs all of its columns (the
statistics), or all tokens and some columns where a column needs all tokens (the weights' gradient).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from .loss import statistics_dtype

# Logits in a piece: 64 MiB in single precision.
PIECE = 2**24
# Columns of a piece come in multiples of this, for the alignment of matrix products.
_ALIGNED = 128


@dataclass(frozen=True, slots=True)
class Head:
    """One rank's columns of the output layer, without gradients.

    `weight`: (rows, hidden), `bias`: (rows,) or None, padding included. `start`: the vocabulary's
    number of the first row. `real`: the number of rows that are no padding. `size`: of the whole
    vocabulary.
    """

    weight: Tensor
    bias: Tensor | None
    start: int
    real: int
    size: int

    @property
    def rows(self) -> int:
        """Return the number of rows, padding included."""
        return self.weight.shape[0]


def token_pieces(tokens: int, columns: int, piece: int = PIECE) -> Iterator[slice]:
    """Yield slices of the tokens whose logits of all columns are about one piece each.

    >>> list(token_pieces(5, 10, piece=20))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(1, piece // max(1, columns))
    yield from (slice(at, min(at + step, tokens)) for at in range(0, tokens, step))


def column_pieces(tokens: int, columns: int, piece: int = PIECE) -> Iterator[slice]:
    """Yield slices of the columns whose logits of all tokens are about one piece each."""
    step = max(_ALIGNED, piece // max(1, tokens) // _ALIGNED * _ALIGNED)
    yield from (slice(at, min(at + step, columns)) for at in range(0, columns, step))


def compute_logits(hidden: Tensor, head: Head, columns: slice = slice(None)) -> Tensor:
    """Return logits (tokens, columns), before the softcap, in the model's precision."""
    bias = None if head.bias is None else head.bias[columns]
    return F.linear(hidden, head.weight[columns], bias)


def cap(logits: Tensor, softcap: float | None) -> tuple[Tensor, Tensor | None]:
    """Return logits after the softcap, and its derivative there (None for 1 everywhere).

    Both are in the precision of statistics. Without a softcap the first may be `logits` itself.
    """
    precise = logits.to(statistics_dtype(logits.dtype))
    if softcap is None:
        return precise, None
    bent = (precise / softcap).tanh_()
    return bent * softcap, 1 - bent.square()


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two matrices in the precision of statistics.

    >>> multiply(torch.ones(1, 2).bfloat16(), torch.ones(2, 1).bfloat16()).dtype
    torch.float32
    """
    precise = statistics_dtype(a.dtype)
    if a.dtype == precise:
        return a @ b
    if a.device.type == "cuda":
        return torch.mm(a, b, out_dtype=precise)
    # Other devices cannot return a sum in higher precision than its factors.
    return a.to(precise) @ b.to(precise)


def pad_columns(values: Tensor, columns: int) -> Tensor:
    """Return values (tokens, some) with zeros up to that many columns."""
    lacking = columns - values.shape[1]
    return F.pad(values, (0, lacking)) if lacking else values
