"""A small encoder in front of a small language model, programs that run both, and one process."""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from counterpoise.sched import Edge, Pass, Program, schedule
from counterpoise.sched.ir.kinds import layer_kind
from counterpoise.sched.runtime.compiled import (
    collectives,
    compile_program,
    without_encoder_backward,
)
from counterpoise.sched.runtime.encoders import EncoderLayers, EncoderPart
from counterpoise.sched.runtime.execution import Walker, walk
from counterpoise.sched.runtime.links import Loopback
from counterpoise.sched.runtime.parts import MicrobatchData, ModelPart, StepData, TensorSpec
from counterpoise.sched.runtime.stage import StageOptions, Stages
from tests.sched.runtime.models import HIDDEN, WORDS, make_stages, total_loss

# Of a tile, between two layers of the encoder, and of its features.
PIXELS, ENCODED, FEATURES = 5, 6, 3


class First(nn.Module):
    """The first stage: the first words are added to the features, which are of as many tiles."""

    def __init__(self, rest: nn.Module) -> None:
        super().__init__()
        self.embedding, self.block = rest.children()
        self.project = nn.Linear(FEATURES, HIDDEN)

    def forward(self, ids: Tensor, features: Tensor) -> Tensor:
        x = self.embedding(ids)
        some = len(features)
        return self.block(torch.cat([x[:some] + self.project(features), x[some:]]))


class Layer(nn.Module):
    """An encoder layer; none of its gradients is put off."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(self.norm(x)))


@dataclass(frozen=True)
class Model:
    """Encoder layers from the pixels up, and the language model's stages."""

    encoder: list[nn.Module]
    stages: list[nn.Module]

    def pieces(self) -> list[nn.Module]:
        return [*self.encoder, *self.stages]

    def __call__(self, ids: Tensor, pixels: Tensor) -> Tensor:
        x: Tensor = self.stages[0](ids, nn.Sequential(*self.encoder)(pixels))
        return nn.Sequential(*self.stages[1:])(x)


def make_model(layers: int, stages: int, dtype: torch.dtype = torch.float64) -> Model:
    made = make_stages(stages)
    made[0] = First(made[0])
    widths = [PIXELS, *[ENCODED] * (layers - 1), FEATURES]
    encoder: list[nn.Module] = [Layer(a, b) for a, b in itertools.pairwise(widths)]
    return Model([layer.to(dtype) for layer in encoder], [stage.to(dtype) for stage in made])


@dataclass(frozen=True)
class Sample:
    """A microbatch; also what is known of it before it is loaded."""

    ids: Tensor
    labels: Tensor
    pixels: Tensor

    @property
    def costs(self) -> dict[str, int]:
        return {"tokens": len(self.ids), "tiles": len(self.pixels)}


def make_samples(count: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Sample]:
    """Microbatches of different sizes; the second has no tile."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    found = []
    for number in range(count):
        tokens = draw.randint(4, 9)
        tiles = 0 if number == 1 else draw.randint(1, 4)
        ids, labels = (torch.randint(WORDS, (tokens,), generator=generator) for _ in range(2))
        pixels = torch.randn(tiles, PIXELS, generator=generator, dtype=dtype)
        found.append(Sample(ids, labels, pixels))
    return found


def features(info: Any) -> tuple[int, ...]:
    return info.costs["tiles"], FEATURES


def hidden(info: Any) -> tuple[int, ...]:
    return info.costs["tiles"], ENCODED


def encoded(
    name: str, ranks: int, microbatches: int, *, width: int = 1, layers: int = 1
) -> Program:
    """Encoder pipelines of `width` ranks with `layers` layers each, beside a schedule's passes.

    The encoders number the microbatches in the reverse of the language model's order.
    """
    base = schedule(name, ranks=ranks, microbatches=microbatches)
    groups = [range(first, first + width) for first in range(0, ranks, width)]
    forward = [layer_kind("EF", n) for n in range(layers)]
    backward = [layer_kind("EB", n) for n in reversed(range(layers))]
    first = base.ranks[base.placement[0]]
    gradient = {p.microbatch: p for p in first if p.stage == 0 and p.kind in "BI"}
    rows, edges = [], []
    for rank, row in enumerate(base.ranks):
        group, own = groups[rank // width], range(rank // width, microbatches, len(groups))
        before = [Pass(rank, kind, m) for m in own for kind in forward]
        after = [Pass(rank, kind, m) for m in own[::-1] for kind in backward]
        rows.append((*before, *row, *after))
        for m in own:
            number = microbatches - 1 - m
            top, low = Pass(rank, forward[-1], m), Pass(rank, backward[-1], m)
            if rank == group[-1]:
                edges.append(Edge(top, Pass(0, "F", number)))
                edges.append(Edge(gradient[number], Pass(rank, backward[0], m)))
            else:
                edges.append(Edge(top, Pass(rank + 1, forward[0], m)))
                edges.append(Edge(Pass(rank + 1, low.kind, m), Pass(rank, backward[0], m)))
    return replace(base, ranks=tuple(map(tuple, rows)), edges=tuple(edges))


def layers_of(model: Model, rank: int, width: int) -> dict[int, nn.Module]:
    """The layers of a rank of an encoder pipeline of so many ranks, of a copy of the encoder."""
    each = len(model.encoder) // width
    return dict(enumerate(model.encoder[each * (rank % width) : each * (rank % width + 1)]))


def reference(model: Model, samples: Sequence[Sample]) -> float:
    """Leave the gradients of one process on the model, and return the loss."""
    total, weight = 0.0, 1 / sum(len(sample.ids) for sample in samples)
    for sample in samples:
        loss = total_loss(model(sample.ids, sample.pixels), sample.labels) * weight
        loss.backward()
        total += loss.item()
    return total


def is_trained(pieces: Sequence[nn.Module]) -> bool:
    return any(p.requires_grad for piece in pieces for p in piece.parameters())


def run_program(
    program: Program,
    models: Sequence[Model],
    samples: Sequence[Sample],
    choose: Callable[[list[int]], int],
    width: int = 1,
) -> float:
    """Run a step on all ranks in this process, one model for each encoder pipeline.

    The stages are those of the first.
    """
    ranks, stages = len(program.ranks), models[0].stages
    encoded = is_trained(models[0].encoder)
    if not encoded:
        program = without_encoder_backward(program)
    wanted = [False, *(encoded or is_trained(stages[: n + 1]) for n in range(len(stages)))]
    weight = 1 / sum(len(sample.ids) for sample in samples)
    microbatches = [
        MicrobatchData(
            {"ids": s.ids, "labels": s.labels, "pixels": s.pixels},
            weight,
            TensorSpec((len(s.ids), HIDDEN), torch.float64),
        )
        for s in samples
    ]
    options = StageOptions(inputs=("ids",), labels=("labels",), loss=total_loss)
    loop, walks, every = Loopback(ranks), [], []
    for rank in range(ranks):
        own = layers_of(models[rank // width], rank, width)
        layers = EncoderLayers(own, features, hidden, ("pixels",), torch.float64)
        part = EncoderPart(program, rank, layers)
        data = StepData(tuple(microbatches), tuple(wanted), part.edge_specs(samples))
        mine = {s: stages[s] for s in program.stages_of(rank)}
        parts: list[ModelPart] = [Stages(program, mine, options), part]
        for one in parts:
            one.begin(data)
        by_kind = {kind: one for one in parts for kind in one.kinds}
        walker = Walker(by_kind, loop.links(rank), collectives(program), reduce=lambda _: None)
        walks.append(walk(compile_program(program, rank, tuple(wanted)), data, walker))
        every += parts
    loop.run(walks, choose)
    return float(sum(found for one in every if (found := one.finish()) is not None))
