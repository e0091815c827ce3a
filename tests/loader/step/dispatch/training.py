"""A step of a small model, on ranks that share their images and in one process."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from counterpoise.loader.step.dispatch import ImageDispatch, StepImages
from counterpoise.loader.step.dispatch.routes import Size, count_rows

WIDTH, PIXELS = 6, (3, 2)


# The sizes of the images of each rank and microbatch.
Images = Sequence[Sequence[Sequence[Size]]]


class Case(NamedTuple):
    """A step: its images, and how they are encoded."""

    images: Images
    together: int | None = None
    sized: bool = False
    reduction: Any = "mean"
    frozen: bool = False


class Encoder(nn.Module):
    """Two features of each row; with sizes, one of each two rows, and rows of an image meet."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.low = nn.Linear(6, 2 * WIDTH)
        self.top = nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: Tensor, sizes: list[Size] | None = None) -> Tensor:
        """Return features (2 rows, width), or (rows / 2, width) for images of these sizes."""
        low = torch.tanh(self.low(rows.flatten(1))).view(-1, WIDTH)
        if sizes is not None:
            parts = low.split([2 * count_rows(size) for size in sizes])
            low = torch.cat([(p + p.mean(0)).view(-1, 4, WIDTH).mean(1) for p in parts])
        made: Tensor = self.top(low)
        return made


class Model(nn.Module):
    """A language model of a few tokens, to which features are added."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Return the loss, a sum; features of no images are left out."""
        whole = torch.cat([tokens, features]) if len(features) else tokens
        loss: Tensor = torch.tanh(self.mix(whole)).square().sum()
        return loss


def inputs(case: Case, rank: int) -> tuple[list[Tensor | None], list[Tensor]]:
    """Return pixels and tokens of a rank's microbatches, the same in every process."""
    pixels: list[Tensor | None] = []
    tokens = []
    for number, sizes in enumerate(case.images[rank]):
        source = torch.Generator().manual_seed(100 * rank + number)
        rows = sum(map(count_rows, sizes))
        pixels.append(torch.randn(rows, *PIXELS, generator=source) if rows else None)
        tokens.append(torch.randn(3 + number, WIDTH, generator=source))
    return pixels, tokens


def dispatch(case: Case, encoder: nn.Module, group: Any = None) -> ImageDispatch:
    """Return the dispatch of a case."""
    size: Size | None = (1, 2, 2) if case.sized else None
    return ImageDispatch(
        encoder, torch.zeros(4 if case.sized else 1, *PIXELS), blank_size=size, group=group,
        together=case.together, reduction=case.reduction,
    )  # fmt: skip


@functools.cache
def groups(ranks: int) -> list[Any]:
    """Return the groups of so many ranks that the pool's processes are divided into."""
    world = range(dist.get_world_size())
    return [dist.new_group([*world[first : first + ranks]]) for first in world[::ranks]]


class Trained(NamedTuple):
    """What a step has made: its loss, and gradients and weights by name."""

    loss: float
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]
    loads: list[tuple[int, ...]]
    whole: list[tuple[int, ...]]


def train_rank(world_rank: int, case: Case) -> Trained:
    """Train a step on as many ranks as the case has; the pool's other ranks do the same."""
    ranks = len(case.images)
    group, rank = groups(ranks)[world_rank // ranks], world_rank % ranks
    # Other values on every rank: those of the first one count.
    encoder, model = Encoder(seed=rank), Model()
    _begin(case, encoder)
    images = dispatch(case, encoder, group)
    pixels, tokens = inputs(case, rank)
    step = images.step(pixels, case.images[rank] if case.sized else None)
    # As with scale_loss and DDP: shares are multiplied by what the mean divides by.
    factor = ranks if case.reduction == "mean" else 1
    total = torch.zeros(())
    for number, text in enumerate(tokens):
        loss = model(text, step.features(number))
        (loss * factor).backward()
        total += loss.detach()
    step.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    for tensor in (total, *gradients):
        dist.all_reduce(tensor, group=group)
    for gradient in gradients:
        gradient /= factor
    return _trained(encoder, model, total, step)


def train_alone(case: Case) -> Trained:
    """Train the same step in one process, without the dispatch."""
    encoder, model = Encoder(), Model()
    _begin(case, encoder)
    total = torch.zeros(())
    for rank, of_rank in enumerate(case.images):
        for sizes, rows, text in zip(of_rank, *inputs(case, rank), strict=True):
            features = torch.zeros(0, WIDTH)
            if rows is not None:
                features = encoder(rows, list(sizes)) if case.sized else encoder(rows)
            loss = model(text, features)
            loss.backward()
            total += loss.detach()
    return _trained(encoder, model, total)


def _begin(case: Case, encoder: Encoder) -> None:
    """Freeze, or put a gradient there of a step before, which is to be added to."""
    encoder.requires_grad_(not case.frozen)
    if not case.frozen:
        encoder.low.bias.grad = torch.full_like(encoder.low.bias, 0.5)


def _trained(
    encoder: nn.Module, model: nn.Module, loss: Tensor, step: StepImages | None = None
) -> Trained:
    named = {
        f"{name}.{inside}": parameter
        for name, module in (("encoder", encoder), ("model", model))
        for inside, parameter in module.named_parameters()
    }
    found = {name: p.grad.clone() for name, p in named.items() if p.grad is not None}
    # By hand: the first optimizer of a process imports torch's compiler for a second.
    weights = {
        name: p.detach() if p.grad is None else p.detach() - 0.1 * p.grad
        for name, p in named.items()
    }
    loads, whole = ([], []) if step is None else (step.loads, step.whole)
    return Trained(float(loss), found, weights, loads, whole)
