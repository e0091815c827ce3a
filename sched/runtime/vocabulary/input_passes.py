"""The passes of the input embedding over one shard: IF looks words up, IB adds their gradient.

A rank gives the rows of its own words and zeros for the others, so the sum over ranks is the
embedding. Autograd does the gradient: IF keeps the edge of its graph, which holds the words and not
the rows, and IB starts from there. Hooks on the weight fire as for an `nn.Embedding`.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge


@dataclass(frozen=True, slots=True)
class Table:
    """One rank's rows of the input embedding.

    `weight`: (rows, hidden). `start`: the vocabulary's number of the first row. `real`: the number
    of rows that are no padding. `size`: of the whole vocabulary. `padding_idx`: the word whose row
    gets no gradient, as in `nn.Embedding`.
    """

    weight: Tensor
    start: int
    real: int
    size: int
    padding_idx: int | None = None


def look_up(words: Tensor, table: Table) -> tuple[Tensor, GradientEdge | None]:
    """Return the shard's part of the embedding, (*words, hidden), and where its gradient enters.

    `words`: vocabulary numbers of any shape. The edge is None if the weight is frozen. Raises
    ValueError for a word outside the vocabulary, on the CPU; elsewhere its embedding is NaN.
    """
    missing = (words < 0) | (words >= table.size)
    if words.device.type == "cpu" and bool(missing.any()):
        word = int(words[missing][0])
        raise ValueError(
            f"word {word} is not in the vocabulary of {table.size} words; give 0 to "
            f"{table.size - 1}"
        )
    row = words.long() - table.start
    owned = (row >= 0) & (row < table.real)
    with torch.enable_grad():
        found = F.embedding(row.masked_fill(~owned, 0), table.weight, _padding_row(table))
        found = found.masked_fill(~owned[..., None], 0)
    edge = get_gradient_edge(found) if found.requires_grad else None
    return found.detach().masked_fill_(missing[..., None], float("nan")), edge


def _padding_row(table: Table) -> int | None:
    """Return the shard's row of the padding word, None if another shard has it."""
    if table.padding_idx is None:
        return None
    row = table.padding_idx - table.start
    return row if 0 <= row < table.real else None


def add_embedding_gradient(edge: GradientEdge | None, gradient: Tensor | None) -> None:
    """Add the gradient (*words, hidden) of the embedding to the weight's; nothing if frozen."""
    if edge is not None and gradient is not None:
        torch.autograd.backward([edge], [gradient])
