"""A small decoder behind a small language model, and one process that trains both."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from counterpoise.sched.runtime import GeneratorSpec
from tests.sched.runtime.encoders.models import Model, Sample, encode, make_model
from tests.sched.runtime.models import HIDDEN, total_loss

# Of a picture that is generated; the resource that counts the states, and the field of the targets.
PICTURE = 5


class Decoder(nn.Module):
    """Draws a picture from each state; its loss is the squared distance to the true ones."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 2 * HIDDEN), nn.Linear(2 * HIDDEN, PICTURE)

    def forward(self, states: Tensor, pictures: Tensor) -> Tensor:
        assert len(states), "the decoder was called without anything to generate"
        drawn = self.down(torch.tanh(self.up(self.norm(states))))
        return (drawn - pictures).square().sum()


def take(hidden: Tensor, fields: Any) -> Tensor:
    """Return the hidden states of the words that are even: those from which pictures are drawn."""
    found: Tensor = hidden[fields["marks"]]
    return found


@dataclass(frozen=True)
class Generating:
    """A language model, maybe with encoders before it, and a decoder behind it."""

    model: Model
    decoder: Decoder

    def pieces(self) -> list[nn.Module]:
        return [*self.model.pieces(), self.decoder]

    def beside(self, other: "Generating") -> list[tuple[nn.Module, nn.Module]]:
        return [*self.model.beside(other.model), (self.decoder, other.decoder)]


def make_generating(
    layers: Sequence[int], stages: int, frozen: Sequence[str] = (), seed: int = 0
) -> Generating:
    """Return a model; `frozen`: "encoders", "stages" and "decoder", those that are not trained.

    `seed`: of the decoder's weights.
    """
    model = make_model(layers, stages, torch.float32, merges=False)
    torch.manual_seed(seed)
    found = Generating(model, Decoder())
    parts = {
        "encoders": chain.from_iterable(found.model.encoders),
        "stages": found.model.stages,
        "decoder": [found.decoder],
    }
    for name in frozen:
        for module in parts[name]:
            module.requires_grad_(False)
    return found


def marks_of(sample: Sample, number: int) -> Tensor:
    """Return which words pictures are drawn from; every third microbatch has none."""
    return (sample.ids % 2 == 0) & (number % 3 != 1)


def pictures_of(sample: Sample, number: int) -> Tensor:
    marked = sample.ids[marks_of(sample, number)].float()
    return torch.outer(marked + 1, torch.linspace(-1, 1, PICTURE))


def costs_of(sample: Sample, number: int) -> dict[str, int]:
    return {**sample.costs, "pictures": int(marks_of(sample, number).sum())}


def weigh(info: Any) -> float:
    """Return what a picture counts: not what a label does."""
    return 0.3 / float(info.step_label_tokens)


def spec_of(decoder: nn.Module | None, states: str, **given: Any) -> GeneratorSpec:
    made: dict[str, Any] = {
        "tokens": {"pictures": 1}, "width": HIDDEN, "inputs": ("pictures",), "take": take,
        "marks": ("marks",), "weigh": weigh,
    }  # fmt: skip
    return GeneratorSpec("drawing", decoder, states=states, **made | given)


def reference(generating: Generating, samples: Sequence[Sample], total: int) -> float:
    """Leave the gradients of one process on the model, and return the loss."""
    found = 0.0
    for number, sample in enumerate(samples):
        hidden, logits = run_stages(generating.model, sample)
        loss = total_loss(logits, sample.labels) / total
        marks = marks_of(sample, number)
        if marks.any():
            drawn = generating.decoder(hidden[marks], pictures_of(sample, number))
            loss = loss + drawn * 0.3 / total
        if loss.requires_grad:
            loss.backward()
        found += loss.item()
    return found


def run_stages(model: Model, sample: Sample) -> tuple[Tensor, Tensor]:
    """Return the hidden states before the head, and its logits."""
    embedding, *blocks = model.stages[0].children()
    x = embedding(sample.ids)
    if model.encoders:
        features = encode(model.encoders[0], sample.pixels)
        x = torch.cat([x[: len(features)] + features, x[len(features) :]])
    *rest, head = [*blocks, *(one for stage in model.stages[1:] for one in stage.children())]
    hidden = nn.Sequential(*rest)(x)
    return hidden, head(hidden)
