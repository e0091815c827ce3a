"""The vocabulary layers, divided over ranks: one rank's rows, its parameters, and its look-up.

Every rank holds the same number of rows. The vocabulary is padded to a multiple of twice the number
of ranks, which keeps the shards' sizes even and their products aligned ("Balancing pipeline
parallelism with vocabulary parallelism", 2025, section 6.1). Padding rows are zero and stay zero.

A rank gives the rows of its own words and zeros for the others, so the sum over ranks is the
embedding. Autograd does the gradient: IF keeps the edge of its graph, which holds the words and not
the rows, and IB starts from there. Hooks on the weight fire as for an `nn.Embedding`.

A state dict has the names of the whole model's layers and none of the padding: rank r's tensors are
the rows that it holds. Joined in the order of ranks (`join_state_dicts`) they are the state dict of
the plain layers, bit by bit. A shard loads either form: its own rows, or the whole tensors.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.distributed.tensor import DTensor

from .logits import Head
from .loss import LossOptions

Algorithm = Literal["alg2", "alg1", "naive"]
Keep = Literal["logits", "nothing"]
GradientSum = Literal["single", "model"]
_CHOICES = {"algorithm": Algorithm, "keep": Keep, "gradient_sum": GradientSum}


@dataclass(frozen=True, slots=True)
class Sharding:
    """The rows of a weight of `size` rows, on `ranks` ranks.

    >>> [Sharding(10, 4).real(rank) for rank in range(4)]  # 16 rows with padding, 4 a rank
    [4, 4, 2, 0]
    """

    size: int
    ranks: int

    def __post_init__(self) -> None:
        """Raise ValueError for a vocabulary or a number of ranks below one."""
        if self.size < 1 or self.ranks < 1:
            raise ValueError(
                f"a vocabulary of {self.size} words on {self.ranks} ranks; give at least one each"
            )

    @property
    def rows(self) -> int:
        """Return the number of rows that every rank holds, padding included."""
        return 2 * -(-self.size // (2 * self.ranks))

    def start(self, rank: int) -> int:
        """Return the first row of a rank; it lies beyond the vocabulary if all are padding."""
        return rank * self.rows

    def real(self, rank: int) -> int:
        """Return the number of a rank's rows that are no padding."""
        return min(max(self.size - self.start(rank), 0), self.rows)


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

    `whole`: the layers, on any device (the rows are copied to `device`, or stay where they are);
    the same weight in both is one parameter here, too. Its other options are the executor's matter.
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
        if not 0 <= rank < ranks:
            raise ValueError(f"rank {rank} of {ranks} ranks; ranks go from 0 to {ranks - 1}")
        self.rank = rank
        self.tied = embedding is not None and embedding.weight is lm_head.weight
        self.padding_idx = None if embedding is None else embedding.padding_idx
        # What the layers are called in state dicts.
        self.names = {"lm_head": whole.lm_head_name, "embedding": whole.embedding_name}
        sharding = Sharding(lm_head.out_features, ranks)
        weight = _take(lm_head.weight, sharding, rank, device)
        bias = None if lm_head.bias is None else _take(lm_head.bias, sharding, rank, device)
        self.lm_head = LayerRows(weight, bias, sharding)
        self.embedding: LayerRows | None = None
        if embedding is not None:
            sharding = Sharding(embedding.num_embeddings, ranks)
            if not self.tied:
                weight = _take(embedding.weight, sharding, rank, device)
            self.embedding = LayerRows(weight, None, sharding)
        self.register_state_dict_post_hook(_rename_and_unpad)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_pad_and_rename)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(_tie)  # type: ignore[no-untyped-call]

    def head(self, dtype: torch.dtype) -> Head:
        """Return the output layer's rows for a pass that computes in `dtype`."""
        rows = self.lm_head
        bias = None if rows.bias is None else rows.bias.detach().to(dtype)
        return Head(
            weight=rows.weight.detach().to(dtype),
            bias=bias,
            start=rows.sharding.start(self.rank),
            real=rows.sharding.real(self.rank),
            size=rows.sharding.size,
        )

    def look_up(self, words: Tensor) -> tuple[Tensor, GradientEdge | None]:
        """Return this rank's part of the embedding (*words, hidden), and where its gradient enters.

        `words`: vocabulary numbers of any shape. The edge is None if the weight is frozen. Raises
        ValueError if the embedding is not divided, and on the CPU for a word outside the
        vocabulary; elsewhere its embedding is NaN.
        """
        rows = self.embedding
        if rows is None:
            raise ValueError(
                "the program has passes of the input embedding (IF, IB), but no embedding was "
                "given: give VocabParallel(lm_head, embedding), or take a schedule without inputs"
            )
        size, start = rows.sharding.size, rows.sharding.start(self.rank)
        real, padding = rows.sharding.real(self.rank), self.padding_idx
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
            found = F.embedding(row.masked_fill(~owned, 0), rows.weight, padding)
            found = found.masked_fill(~owned[..., None], 0)
        edge = get_gradient_edge(found) if found.requires_grad else None
        return found.detach().masked_fill_(missing[..., None], float("nan")), edge

    def layers(self) -> Iterator[tuple[str, LayerRows]]:
        """Yield the layers with their names here; a checkpoint's may be others (`names`)."""
        yield "lm_head", self.lm_head
        if self.embedding is not None:
            yield "embedding", self.embedding

    def named_rows(self) -> Iterator[tuple[str, nn.Parameter, Sharding]]:
        """Yield the parameters by their names in the whole model; a tied one has two."""
        for layer, rows in self.layers():
            for name, parameter in rows.named_parameters():
                yield f"{self.names[layer]}.{name}", parameter, rows.sharding

    def take_rows(self, value: Tensor, sharding: Sharding) -> Tensor:
        """Return this rank's rows of a whole layer's tensor, with zeros for padding."""
        return _padded(value, sharding, self.rank)


def _take(
    whole: Tensor, sharding: Sharding, rank: int, device: torch.device | str | None
) -> nn.Parameter:
    """Return a rank's rows of a parameter, padded, as a parameter of its own."""
    rows, device = _padded(whole.detach(), sharding, rank), device or whole.device
    # of the meta device there is nothing to copy: the rows are loaded later
    rows = torch.zeros_like(rows, device=device) if rows.is_meta else rows.to(device)
    return nn.Parameter(rows, requires_grad=whole.requires_grad)


def _padded(value: Tensor, sharding: Sharding, rank: int) -> Tensor:
    """Return a rank's rows with zeros for padding, from all rows or from the rank's real ones."""
    start, real = sharding.start(rank), sharding.real(rank)
    if value.shape[0] == sharding.size:
        value = value[start : start + real]
    rows = value.new_zeros(sharding.rows, *value.shape[1:])
    rows[:real] = value
    return rows


def _rename_and_unpad(
    module: VocabularyShard, state: dict[str, Any], prefix: str, _metadata: Mapping[str, Any]
) -> None:
    """Turn the entries of a shard into the whole model's names, without padding."""
    found = {}
    for name, rows in module.layers():
        for part, _ in rows.named_parameters():
            value = state.pop(f"{prefix}{name}.{part}")
            real = rows.sharding.real(module.rank)
            found[f"{prefix}{module.names[name]}.{part}"] = value[:real]
    state.update(found)


def _pad_and_rename(
    module: VocabularyShard,
    state: dict[str, Any],
    prefix: str,
    _metadata: Mapping[str, Any],
    _strict: bool,
    _missing: list[str],
    _unexpected: list[str],
    errors: list[str],
) -> None:
    """Turn a checkpoint's entries, whole or a rank's own, into this shard's."""
    given = {}
    for name, rows in module.layers():
        for part, _ in rows.named_parameters():
            key = f"{prefix}{module.names[name]}.{part}"
            if key in state:
                given[f"{prefix}{name}.{part}"] = (key, state.pop(key), rows.sharding)
    if module.tied:
        # A checkpoint may hold a tied weight under either name alone.
        both = [f"{prefix}lm_head.weight", f"{prefix}embedding.weight"]
        for one, other in (both, both[::-1]):
            if one not in given and other in given:
                given[one] = given[other]
    for target, (key, value, sharding) in given.items():
        real = sharding.real(module.rank)
        if value.shape[0] not in (sharding.size, real):
            errors.append(
                f"{key} has {value.shape[0]} rows; rank {module.rank} takes all "
                f"{sharding.size}, or its own {real}"
            )
        else:
            state[target] = _padded(value, sharding, module.rank)


def _tie(module: VocabularyShard, _incompatible: object) -> None:
    """Make a tied weight one parameter again after load_state_dict(assign=True)."""
    if module.tied and module.embedding is not None:
        module.embedding.weight = module.lm_head.weight


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


def join_state_dicts(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the state dict of the whole layers, from those of all ranks in their order.

    Raises ValueError if the ranks' names differ.
    """
    names = list(parts[0]) if parts else []
    for rank, part in enumerate(parts):
        if list(part) != names:
            raise ValueError(
                f"rank {rank} has {', '.join(part)}, rank 0 has {', '.join(names)}; give the state "
                "dicts of all ranks of one vocabulary, in the order of ranks"
            )
    return {name: torch.cat([part[name] for part in parts]) for name in names}
