"""The vocabulary layers, divided over ranks: one rank's rows, its parameters, and its look-up.

Every rank holds the same number of rows. The vocabulary is padded to a multiple of twice the number
of ranks, which keeps the shards' sizes even and their products aligned ("Balancing pipeline
parallelism with vocabulary parallelism", 2025, section 6.1). Padding rows are zero and stay zero.

A rank gives the rows of its own words and zeros for the others, so the sum over ranks is the
embedding. Autograd does the gradient: IF keeps the edge of its graph, which holds the words and not
the rows, and IB starts from there. Hooks on the weight fire as for an `nn.Embedding`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.distributed.tensor import DTensor

from .loss import LossOptions
from .output_passes import Head

Algorithm = Literal["alg2", "alg1", "naive"]
Keep = Literal["logits", "nothing"]
GradientSum = Literal["single", "model"]
_CHOICES = {"algorithm": Algorithm, "keep": Keep, "gradient_sum": GradientSum}


@dataclass(frozen=True, slots=True)
class Sharding:
    """The rows of a weight of `size` rows that one of `ranks` ranks has.

    >>> [Sharding(10, 4, rank).real for rank in range(4)]  # 16 rows with padding, 4 a rank
    [4, 4, 2, 0]
    """

    size: int
    ranks: int
    rank: int

    @property
    def rows(self) -> int:
        """Return the number of rows that every rank holds, padding included."""
        return 2 * -(-self.size // (2 * self.ranks))

    @property
    def start(self) -> int:
        """Return the rank's first row; it lies beyond the vocabulary if all are padding."""
        return self.rank * self.rows

    @property
    def real(self) -> int:
        """Return the number of the rank's rows that are no padding."""
        return min(max(self.size - self.start, 0), self.rows)

    def take(self, whole: Tensor) -> Tensor:
        """Return the rank's rows of a whole layer's tensor, with zeros for padding."""
        rows = whole.new_zeros(self.rows, *whole.shape[1:])
        rows[: self.real] = whole[self.start : self.start + self.real]
        return rows


class LayerRows(nn.Module):
    """Some rows of the weight (and bias) of a layer; it computes nothing by itself."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, sharding: Sharding) -> None:
        super().__init__()
        self.weight = weight
        self.register_parameter("bias", bias)
        self.sharding = sharding


class VocabularyShard(nn.Module):
    """The rows of the output layer, and of the input embedding if it is divided too, of one rank.

    The same weight in both layers is one parameter here, too.
    """

    def __init__(
        self,
        whole: "VocabParallel",
        rank: int,
        ranks: int,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        lm_head, embedding = whole.lm_head, whole.embedding
        self.padding_idx = None if embedding is None else embedding.padding_idx
        # What the layers are called in the whole model.
        self.names = whole.lm_head_name, whole.embedding_name
        sharding = Sharding(lm_head.out_features, ranks, rank)
        weight = _take(lm_head.weight, sharding, device)
        bias = None if lm_head.bias is None else _take(lm_head.bias, sharding, device)
        self.lm_head = LayerRows(weight, bias, sharding)
        self.embedding: LayerRows | None = None
        if embedding is not None:
            sharding = Sharding(embedding.num_embeddings, ranks, rank)
            if embedding.weight is not lm_head.weight:
                weight = _take(embedding.weight, sharding, device)
            self.embedding = LayerRows(weight, None, sharding)

    def head(self, dtype: torch.dtype) -> Head:
        """Return the output layer's rows for a pass that computes in `dtype`."""
        rows = self.lm_head
        bias = None if rows.bias is None else rows.bias.detach().to(dtype)
        return Head(
            weight=rows.weight.detach().to(dtype),
            bias=bias,
            start=rows.sharding.start,
            real=rows.sharding.real,
            size=rows.sharding.size,
        )

    def look_up(self, words: Tensor) -> tuple[Tensor, GradientEdge | None]:
        """Return this rank's part of the embedding (*words, hidden), and where its gradient enters.

        `words`: vocabulary numbers of any shape. The edge is None if the weight is frozen. Raises
        ValueError on the CPU for a word outside the vocabulary; elsewhere its embedding is NaN.
        """
        rows = self.embedding
        assert rows is not None  # as refuse_other_passes has seen
        size, start = rows.sharding.size, rows.sharding.start
        real, padding = rows.sharding.real, self.padding_idx
        missing = (words < 0) | (words >= size)
        if words.device.type == "cpu" and bool(missing.any()):
            word = int(words[missing][0])
            raise ValueError(
                f"word {word} is not in the vocabulary of {size} words; give 0 to {size - 1}"
            )
        row = words.long() - start
        owned = (row >= 0) & (row < real)
        if padding is not None:  # the row here of the word without gradient, if it is here
            padding = padding - start if 0 <= padding - start < real else None
        with torch.enable_grad():
            embedded = F.embedding(row.masked_fill(~owned, 0), rows.weight, padding)
            embedded = embedded.masked_fill(~owned[..., None], 0)
        edge = get_gradient_edge(embedded) if embedded.requires_grad else None
        return embedded.detach().masked_fill_(missing[..., None], float("nan")), edge

    def named_rows(self) -> Iterator[tuple[str, nn.Parameter, Sharding]]:
        """Yield the parameters by their names in the whole model; a tied one has two."""
        for layer, rows in zip(self.names, (self.lm_head, self.embedding), strict=True):
            if rows is not None:
                for name, parameter in rows.named_parameters():
                    yield f"{layer}.{name}", parameter, rows.sharding


def _take(whole: Tensor, sharding: Sharding, device: torch.device | str | None) -> nn.Parameter:
    """Return a rank's rows of a parameter, padded, as a parameter of its own."""
    rows, device = sharding.take(whole.detach()), device or whole.device
    # of the meta device there is nothing to copy: the rows are loaded later
    rows = torch.zeros_like(rows, device=device) if rows.is_meta else rows.to(device)
    return nn.Parameter(rows, requires_grad=whole.requires_grad)


@dataclass(frozen=True, eq=False, slots=True)
class VocabParallel:
    """The output layer, and the input embedding if given, to be divided over all pipeline ranks.

    Args:
        lm_head: An `nn.Linear` of (words, hidden), whole on every rank (the meta device will do).
        embedding: An `nn.Embedding` of as many words, to be divided, too; with the weight of
            `lm_head` they stay tied. Default: none.
        algorithm: The form of the output layer, which the schedule must have, too: "alg2" (one
            barrier), "alg1" (two), "naive" (three); default "alg2".
        keep: What is kept between a microbatch's S and its T besides the hidden states: "logits",
            in the model's precision, or "nothing", then T computes them a second time, a piece at
            once; default "logits".
        loss: The LossOptions; default: plain cross entropy.
        gradient_sum: The precision in which the ranks' parts of dX are added up: "single", or
            "model", with half the bytes and errors that grow with the ranks; default "single".
        lm_head_name: What checkpoints call the output layer; default "lm_head".
        embedding_name: What checkpoints call the embedding; default "embedding".

    Raises ValueError and TypeError for layers and options that cannot be divided.
    """

    lm_head: nn.Linear
    embedding: nn.Embedding | None = None
    algorithm: Algorithm = "alg2"
    keep: Keep = "logits"
    loss: LossOptions = field(default_factory=LossOptions)
    gradient_sum: GradientSum = "single"
    lm_head_name: str = "lm_head"
    embedding_name: str = "embedding"

    def __post_init__(self) -> None:
        """Raise ValueError or TypeError for layers and options that cannot be divided."""
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in get_args(allowed):
                choices = " or ".join(map(repr, get_args(allowed)))
                raise ValueError(f"{name}={getattr(self, name)!r}; give {choices}")
        if not isinstance(self.lm_head, nn.Linear):
            kind = type(self.lm_head).__name__
            raise TypeError(f"lm_head is a {kind}; give an nn.Linear from hidden states to words")
        layers = [layer for layer in (self.lm_head, self.embedding) if layer is not None]
        if any(isinstance(p, DTensor) for layer in layers for p in layer.parameters()):
            raise TypeError(
                "the vocabulary's layers are DTensors; vocabulary passes divide them over the "
                "pipeline's ranks, alike in all lanes of tensor parallelism: give plain ones"
            )
        if self.embedding is not None:
            _check_embedding(self.embedding, self.lm_head)

    def shard(
        self, rank: int, ranks: int, device: torch.device | str | None = None
    ) -> VocabularyShard:
        """Return the parameters of one of `ranks` pipeline ranks, copied to a device.

        >>> VocabParallel(nn.Linear(4, 10)).shard(3, 4).lm_head.weight.shape
        torch.Size([4, 4])
        """
        return VocabularyShard(self, rank, ranks, device)


def _check_embedding(embedding: nn.Embedding, lm_head: nn.Linear) -> None:
    """Raise for an embedding that lookups in a shard would compute differently."""
    if not isinstance(embedding, nn.Embedding):
        raise TypeError(f"embedding is a {type(embedding).__name__}; give an nn.Embedding")
    for option in ("max_norm", "scale_grad_by_freq", "sparse"):
        if getattr(embedding, option):
            raise ValueError(
                f"the embedding has {option}, which needs all of its rows on one rank; "
                "leave it out, or do not divide the embedding"
            )
    if embedding.embedding_dim != lm_head.in_features:
        raise ValueError(
            f"the embedding gives hidden states of {embedding.embedding_dim}, the output layer "
            f"takes {lm_head.in_features}; give layers of one model"
        )
