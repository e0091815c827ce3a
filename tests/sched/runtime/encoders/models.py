"""Small encoders in front of a small language model, programs that run both, and one process."""

import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from counterpoise.sched import Edge, Pass, Program, schedule
from counterpoise.sched.bubble_filling.setup import Kernel, Resource
from counterpoise.sched.ir.kinds import layer_kind
from counterpoise.sched.runtime import offer
from counterpoise.sched.runtime.compiled import collectives, compile_program
from counterpoise.sched.runtime.encoders.part import (
    EncoderPart,
    RankEncoders,
    rank_encoders,
    trained_program,
)
from counterpoise.sched.runtime.encoders.placement import EncoderSpec
from counterpoise.sched.runtime.execution.walk import Walker, walk
from counterpoise.sched.runtime.parts import MicrobatchData, ModelPart, StepData, TensorSpec
from counterpoise.sched.runtime.settings import StageOptions, StepLoss
from counterpoise.sched.runtime.stage.modules import Stages
from tests.sched.runtime.loopback import Loopback
from tests.sched.runtime.models import HIDDEN, WORDS, make_stages, total_loss

# Of an input, between two layers of an encoder, and of its features.
INPUTS, ENCODED = 5, 6
# By encoder: the field that it takes, and the resource that its tokens are counted by.
FIELDS = {"vision": ("pixels", "tiles"), "audio": ("sounds", "clips")}


class First(nn.Module):
    """A first stage that merges by itself."""

    def __init__(self, rest: nn.Module) -> None:
        super().__init__()
        self.embedding, self.block = rest.children()

    def forward(self, ids: Tensor, *features: Tensor) -> Tensor:
        named = dict(zip(FIELDS, features, strict=False))
        found: Tensor = self.block(merge(self.embedding(ids), named, {}))
        return found


def merge(embeddings: Tensor, features: Mapping[str, Tensor], fields: Mapping[str, Any]) -> Tensor:
    """Add the first encoder's features to the first words, the second one's to the last ones."""
    del fields
    vision, audio = features["vision"], features.get("audio")
    some = len(vision)
    embeddings = torch.cat([embeddings[:some] + vision, embeddings[some:]])
    if audio is None:
        return embeddings
    rest = len(embeddings) - len(audio)
    return torch.cat([embeddings[:rest], embeddings[rest:] + audio])


class Layer(nn.Module):
    """An encoder layer; it takes no empty tensors, as many encoders do not."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        assert len(x), "an encoder was called without anything to encode"
        return torch.tanh(self.linear(self.norm(x)))


@dataclass(frozen=True)
class Model:
    """The encoders' layers from the inputs up, and the language model's stages."""

    encoders: list[list[nn.Module]]
    stages: list[nn.Module]

    def pieces(self) -> list[nn.Module]:
        return [*itertools.chain(*self.encoders), *self.stages]

    def beside(self, other: "Model") -> list[tuple[nn.Module, nn.Module]]:
        """Return the encoders' layers with another model's."""
        both = zip(itertools.chain(*self.encoders), itertools.chain(*other.encoders), strict=True)
        return list(both)

    def __call__(self, sample: "Sample") -> Tensor:
        embedding, *blocks = self.stages[0].children()
        named = dict(zip(FIELDS, map(encode, self.encoders, sample.inputs()), strict=False))
        x = merge(embedding(sample.ids), named, {})
        return nn.Sequential(*blocks, *self.stages[1:])(x)


def encode(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    found: Tensor = nn.Sequential(*layers)(x) if len(x) else x.new_zeros(0, HIDDEN)
    return found


def make_model(
    layers: Sequence[int], stages: int, dtype: torch.dtype = torch.float64, *, merges: bool = True
) -> Model:
    """Return a model with encoders of so many layers; `merges`: whether its first stage does."""
    made = make_stages(stages)
    if merges:
        made[0] = First(made[0])
    encoders: list[list[nn.Module]] = []
    for count in layers:
        widths = [INPUTS, *[ENCODED] * (count - 1), HIDDEN]
        encoders.append([Layer(a, b).to(dtype) for a, b in itertools.pairwise(widths)])
    return Model(encoders, [stage.to(dtype) for stage in made])


@dataclass(frozen=True)
class Sample:
    """A microbatch; also what is known of it before it is loaded."""

    ids: Tensor
    labels: Tensor
    pixels: Tensor
    sounds: Tensor

    def inputs(self) -> tuple[Tensor, Tensor]:
        return self.pixels, self.sounds

    @property
    def costs(self) -> dict[str, int]:
        return {"tokens": len(self.ids), "tiles": len(self.pixels), "clips": len(self.sounds)}


def make_samples(count: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Sample]:
    """Microbatches of different sizes; some have no images, some no sounds, one has none."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    found = []
    for number in range(count):
        tokens = draw.randint(4, 9)
        tiles = 0 if number % 4 == 1 else draw.randint(1, 4)
        clips = 0 if number % 3 == 1 else draw.randint(1, 3)
        ids, labels = (torch.randint(WORDS, (tokens,), generator=generator) for _ in range(2))
        pixels, sounds = (
            torch.randn(n, INPUTS, generator=generator, dtype=dtype) for n in (tiles, clips)
        )
        found.append(Sample(ids, labels, pixels, sounds))
    return found


def specs_of(
    model: Model, dtype: torch.dtype = torch.float32, fields: Mapping[str, str] | None = None
) -> list[EncoderSpec]:
    """Describe a model's encoders; `fields`: other names of the fields that they take."""

    def spec(name: str, layers: list[nn.Module]) -> EncoderSpec:
        given, resource = FIELDS[name]
        return EncoderSpec(
            name, layers, tokens={resource: 1}, width=HIDDEN,
            inputs=((fields or {}).get(given, given),),
            hidden=lambda info: (info.costs[resource], ENCODED), dtype=dtype,
        )  # fmt: skip

    return [spec(name, layers) for name, layers in zip(FIELDS, model.encoders, strict=False)]


def offer_points(stages: Iterable[nn.Module]) -> None:
    """Have the blocks of stages offer points, in forward and backward."""
    for stage in stages:
        for block in stage.children():
            if not isinstance(block, nn.Embedding):
                block.register_forward_hook(lambda *_: offer())
                block.register_full_backward_hook(lambda *_: offer())


def inner_kernels(points: int) -> dict[str, list[Kernel]]:
    """Return passes that wait for half of their time, at so many points."""
    parts: tuple[Resource, ...] = ("compute", "communication")
    return {kind: [Kernel(one, one, 1) for one in parts] * points for kind in "FBIW"}


def encoded(
    name: str, ranks: int, microbatches: int, *, width: int = 1, layers: Sequence[int] = (1,)
) -> Program:
    """Encoder pipelines of `width` ranks with so many layers each, beside a schedule's passes.

    The encoders number the microbatches in the reverse of the language model's order.
    """
    base = schedule(name, ranks=ranks, microbatches=microbatches)
    groups = [range(first, first + width) for first in range(0, ranks, width)]
    count, ends = sum(layers), list(itertools.accumulate(layers))
    forward = [layer_kind("EF", n) for n in range(count)]
    backward = [layer_kind("EB", n) for n in reversed(range(count))]
    first = base.ranks[base.placement[0]]
    gradient = {p.microbatch: p for p in first if p.stage == 0 and p.kind in "BI"}
    rows, edges = [], []
    for rank, row in enumerate(base.ranks):
        group, own = groups[rank // width], range(rank // width, microbatches, len(groups))
        before = [Pass(rank, kind, m) for m in own for kind in forward]
        after = [Pass(rank, kind, m) for m in own[::-1] for kind in backward]
        rows.append((*before, *row, *after))
        for m, (size, end) in itertools.product(own, zip(layers, ends, strict=True)):
            number = microbatches - 1 - m
            low, top = end - size, end - 1
            up, down = Pass(rank, layer_kind("EF", top), m), Pass(rank, layer_kind("EB", top), m)
            if rank == group[-1]:
                edges.append(Edge(up, Pass(0, "F", number)))
                edges.append(Edge(gradient[number], down))
            else:
                edges.append(Edge(up, Pass(rank + 1, layer_kind("EF", low), m)))
                edges.append(Edge(Pass(rank + 1, layer_kind("EB", low), m), down))
    return replace(base, ranks=tuple(map(tuple, rows)), edges=tuple(edges))


def reference(model: Model, samples: Sequence[Sample], total: int = 0) -> float:
    """Leave the gradients of one process on the model, and return the loss."""
    found, weight = 0.0, 1 / (total or sum(len(sample.ids) for sample in samples))
    for sample in samples:
        loss = total_loss(model(sample), sample.labels) * weight
        if loss.requires_grad:  # a frozen language model learns nothing without an encoder's input
            loss.backward()
        found += loss.item()
    return found


def is_trained(pieces: Sequence[nn.Module]) -> bool:
    return any(p.requires_grad for piece in pieces for p in piece.parameters())


def lowest_trained(encoders: Sequence[EncoderSpec]) -> list[int | None]:
    return [
        next((n for n, layer in spec.layers() if is_trained([layer])), None) for spec in encoders
    ]


def run_program(
    program: Program,
    models: Sequence[Model],
    samples: Sequence[Sample],
    choose: Callable[[list[int]], int],
    width: int = 1,
    describe: Callable[[Model, torch.dtype], list[EncoderSpec]] = specs_of,
    *,
    recompute: bool = False,
) -> float:
    """Run a step on all ranks in this process, one model for each encoder pipeline.

    The stages are those of the first. `describe`: gives the encoders' descriptions. `recompute`: as
    in StageOptions.
    """
    ranks, stages = len(program.ranks), models[0].stages
    described = [describe(model, torch.float64) for model in models]
    placement = rank_encoders(described[0], program, 0).placement
    lowest = lowest_trained(described[0])
    encoded = any(number is not None for number in lowest)
    program = trained_program(program, placement, lowest)
    wanted = [False, *(encoded or is_trained(stages[: n + 1]) for n in range(len(stages)))]
    weight = 1 / sum(len(sample.ids) for sample in samples)
    microbatches = [
        MicrobatchData(vars(s), weight, TensorSpec((len(s.ids), HIDDEN), torch.float64))
        for s in samples
    ]
    options, loss = StageOptions(("ids",), recompute=recompute), StepLoss(total_loss)
    loop, walks, every = Loopback(ranks), [], []
    for rank in range(ranks):
        names = tuple(spec.name for spec in described[0])
        own = RankEncoders(tuple(described[rank // width]), rank, placement, names)
        part = EncoderPart(program, own, options)
        data = StepData(tuple(microbatches), tuple(wanted), part.edge_specs(samples))
        mine = {s: stages[s] for s in program.stages_of(rank)}
        parts: list[ModelPart] = [Stages(program, mine, options, loss, part.joints), part]
        for one in parts:
            one.begin_step(data)
        by_kind = {kind: one for one in parts for kind in one.kinds}
        walker = Walker(by_kind, loop.links(rank), collectives(program), reduce=lambda _: None)
        walks.append(walk(compile_program(program, rank, tuple(wanted)), data, walker))
        every += parts
    loop.run(walks, choose)
    return float(sum(found for one in every if (found := one.finish_step()) is not None))
