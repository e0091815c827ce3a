"""Microbatches and layers from seeds, with what is rare made frequent."""

from dataclasses import dataclass, field
from random import Random

import torch
from torch import Tensor, nn

from counterpoise.sched.runtime.parts import MicrobatchData
from counterpoise.sched.runtime.vocabulary.loss import LossOptions
from tests.sched.runtime.vocabulary.one_process import labelled

# Each option alone, then all together.
OPTIONS = {
    "plain": LossOptions(),
    "smoothing": LossOptions(label_smoothing=0.1),
    "z-loss": LossOptions(z_loss=1e-2),
    "softcap": LossOptions(softcap=2.0),
    "ignore 3": LossOptions(ignore_index=3),
    "all": LossOptions(ignore_index=-1, label_smoothing=0.2, z_loss=1e-2, softcap=3.0),
    "smoothing and softcap": LossOptions(label_smoothing=1.0, softcap=1.5),
}


@dataclass(frozen=True)
class Data:
    head: nn.Linear
    hidden: list[Tensor]
    batches: list[MicrobatchData]


@dataclass(frozen=True)
class Shape:
    size: int = 37
    hidden: int = 8
    tokens: tuple[int, ...] = (6, 1, 9)
    bias: bool = True
    ignored: str = "some"
    spread: float = 2.0
    options: LossOptions = field(default_factory=LossOptions)


def make_data(shape: Shape, seed: int, dtype: torch.dtype = torch.float32) -> Data:
    """Layers and microbatches; weights of the loss differ from microbatch to microbatch."""
    draw = torch.Generator().manual_seed(seed)
    head = nn.Linear(shape.hidden, shape.size, bias=shape.bias, dtype=dtype)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw))
    hidden, batches = [], []
    for number, tokens in enumerate(shape.tokens):
        x = torch.randn(tokens, shape.hidden, generator=draw) * shape.spread / shape.hidden**0.5
        labels = torch.randint(0, shape.size, (tokens,), generator=draw)
        if shape.ignored == "all" or (shape.ignored == "one microbatch" and number == 0):
            labels.fill_(shape.options.ignore_index)
        elif shape.ignored == "some":
            labels[torch.rand(tokens, generator=draw) < 0.3] = shape.options.ignore_index
        hidden.append(x.to(dtype))
        batches.append(labelled(labels, (number + 1) / 10))
    return Data(head, hidden, batches)


def a_shape(seed: int) -> Shape:
    """A shape from a seed: odd sizes, shards of padding, empty microbatches, ignored labels."""
    random = Random(seed)
    return Shape(
        size=random.choice([1, 2, 3, 7, 16, 17, 33, 37, 61, 300]),
        hidden=random.choice([1, 3, 8]),
        tokens=tuple(random.choice([0, 1, 2, 5, 11]) for _ in range(random.randint(1, 4))),
        bias=random.random() < 0.5,
        ignored=random.choice(["some", "none", "all", "one microbatch"]),
        spread=random.choice([0.1, 2.0, 30.0]),
        options=random.choice(list(OPTIONS.values())),
    )
