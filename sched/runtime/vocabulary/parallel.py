"""The vocabulary layers of a model, to be divided over the ranks of a pipeline."""

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from .loss import LossOptions
from .shard import VocabularyShard

Algorithm = Literal["alg2", "alg1", "naive"]
Keep = Literal["logits", "nothing"]
GradientSum = Literal["single", "model"]
_CHOICES = {"algorithm": Algorithm, "keep": Keep, "gradient_sum": GradientSum}


@dataclass(frozen=True, eq=False, slots=True)
class VocabParallel:
    """The output layer, and the input embedding if given, to be divided over all pipeline ranks.

    `lm_head`: an `nn.Linear` of (words, hidden), `embedding`: an `nn.Embedding` of as many words,
    whole on every rank (the meta device will do); with the same weight in both they stay tied.
    `algorithm`: the form of the output layer, which the schedule must have too: "alg2" (one
    barrier), "alg1" (two), "naive" (three). `keep`: what is kept between a microbatch's S and its
    T besides the hidden states: "logits", in the model's precision, or "nothing", then T computes
    them a second time, a piece at once. `loss`: the options of the loss. `gradient_sum`: the
    precision in which the ranks' parts of dX are added up: "single", or "model" for the model's,
    with half the bytes and errors that grow with the ranks. `lm_head_name`, `embedding_name`: what
    state dicts call the two layers.
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

        >>> shards = [VocabParallel(nn.Linear(4, 10)).shard(rank, 4) for rank in range(4)]
        >>> [len(shard.state_dict()["lm_head.weight"]) for shard in shards]
        [4, 4, 2, 0]
        """
        return VocabularyShard(
            self.lm_head,
            self.embedding,
            rank=rank,
            ranks=ranks,
            names=(self.lm_head_name, self.embedding_name),
            device=device,
        )


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
