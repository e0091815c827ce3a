"""The models of `bench runtime`: a small language model in stages, and stages that do nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

_HEADS = 4


@dataclass(frozen=True, slots=True)
class PipelineSizes:
    """Sizes of the pipeline. `blocks`: of the whole model. `tokens`: of a microbatch, all equal."""

    ranks: int = 4
    microbatches: int = 8
    blocks: int = 8
    hidden: int = 256
    tokens: int = 128
    words: int = 1024


@dataclass(frozen=True, slots=True)
class BenchBatch:
    """The microbatches of a step: ids and labels (microbatches, tokens)."""

    ids: Tensor
    labels: Tensor

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return a microbatch's part of the step's mean loss."""
        return summed_loss(logits, labels) / self.labels.numel()


class _Block(nn.Module):
    """A transformer block on one packed sequence (tokens, hidden)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(hidden), nn.LayerNorm(hidden)])
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).view(len(x), 3, _HEADS, -1).permute(1, 2, 0, 3)
        mixed = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
        x = x + self.out(mixed.transpose(0, 1).reshape(x.shape))
        out: Tensor = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return out


class _Shift(nn.Module):
    """A stage that adds one number: as little as has a graph and a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.amount = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.amount


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross entropy, summed over tokens."""
    return F.cross_entropy(logits, labels, reduction="sum")


def make_batch(sizes: PipelineSizes) -> BenchBatch:
    """Return random microbatches, the same for the same sizes."""
    draw = torch.Generator().manual_seed(1)
    shape = (sizes.microbatches, sizes.tokens)
    ids, labels = (torch.randint(sizes.words, shape, generator=draw) for _ in range(2))
    return BenchBatch(ids, labels)


def make_stages(sizes: PipelineSizes, count: int) -> list[nn.Module]:
    """Return the language model in that many stages: the same weights for any number.

    Raises ValueError if the blocks cannot be divided evenly.
    """
    if sizes.blocks % count:
        raise ValueError(
            f"{sizes.blocks} blocks cannot be divided into {count} stages; give a multiple"
        )
    torch.manual_seed(0)
    each, hidden = sizes.blocks // count, sizes.hidden
    layers: list[nn.Module] = [_Block(hidden) for _ in range(sizes.blocks)]
    cut = [layers[at : at + each] for at in range(0, len(layers), each)]
    cut[0].insert(0, nn.Embedding(sizes.words, hidden))
    cut[-1] += [nn.LayerNorm(hidden), nn.Linear(hidden, sizes.words)]
    return [nn.Sequential(*stage) for stage in cut]


def make_idle_stages(sizes: PipelineSizes, count: int) -> list[nn.Module]:
    """Return stages that add one number; the first one embeds."""
    first = nn.Embedding(sizes.words, sizes.hidden)
    return [first, *(_Shift() for _ in range(count - 1))]


def reference_gradients(
    stages: Sequence[nn.Module], own: Mapping[int, nn.Module], batch: BenchBatch
) -> dict[str, Tensor]:
    """Return the gradients of the stages' parameters by one process, for the rank's own stages.

    `stages`: the whole model with the same weights; it is left with its gradients.
    """
    model = nn.Sequential(*stages)
    for ids, labels in zip(batch.ids, batch.labels, strict=True):
        torch.autograd.backward(batch.loss(model(ids), labels))
    return named_gradients({number: stages[number] for number in own})


def named_gradients(stages: Mapping[int, nn.Module]) -> dict[str, Tensor]:
    """Return the gradients by the stage's number and the parameter's name."""
    return {
        f"{number}.{name}": parameter.grad
        for number, module in stages.items()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }


def largest_error(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Return the largest |a - b| / max |b| of any tensor; infinite if one has others.

    >>> one = torch.ones(2)
    >>> largest_error({"w": 1.5 * one}, {"w": one}), largest_error({}, {"w": one})
    (0.5, inf)
    """
    if found.keys() != expected.keys():
        return float("inf")
    pairs = ((found[name], expected[name]) for name in expected)
    return max(float((a - b).abs().max() / (b.abs().max() + 1e-30)) for a, b in pairs)
