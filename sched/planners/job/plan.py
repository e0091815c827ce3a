"""A job, what may be chosen for it, and the plans that are made of it.

A plan is six choices, each of which depends on those before it:

1. `placement`: where the encoder is: "first" in the pipeline's chain of layers, as copies in the
   "bubbles" of the language model's pipeline, or a "units" of GPUs of its own; "none" without one;
2. `sizes`: TP, DP and PP of the pipeline, and of the encoder's unit;
3. `schedule`, with the chunks of a rank (VPP) and the vocabulary's algorithm;
4. `batch`: microbatches of a step, and their order; their budgets follow from the data;
5. `stages`: the layers of each stage;
6. `recompute`: each stage's layers that are computed again in the backward.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...ir.program import Program
from ...ir.registry import schedule
from ...shapes import GENERATOR, Amounts, Device, Model, ParallelLayout
from ..orchestration.search import divisors
from ..orchestration.units import TENSOR_SIZES, Unit

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
ENCODER, LANGUAGE, WHOLE = "encoder", "language", "whole"
PLACEMENTS = ("first", "bubbles", "units")
MOST_STAGES = 64
# Up to here the search goes to its end.
EXACT_GPUS = 16
# More microbatches a stage than this shorten a step by less than a hundredth.
MOST_ROUNDS = 16


class Sizes(NamedTuple):
    """The GPUs of the pipeline, and of the encoder's unit if it has one."""

    pipeline: Unit
    encoder: Unit | None = None


class ScheduleChoice(NamedTuple):
    """A schedule by name, and the stages of each rank."""

    name: str
    chunks: int = 1

    @property
    def options(self) -> dict[str, int]:
        """Return the options of the registered schedule."""
        return {"chunks": self.chunks} if self.name.startswith("interleaved") else {}

    def program(self, ranks: int, microbatches: int) -> Program:
        """Return the schedule's program."""
        return schedule(self.name, ranks=ranks, microbatches=microbatches, **self.options)

    @property
    def spread(self) -> bool:
        """Return whether the output layer is divided over the pipeline's ranks."""
        return self.name.endswith(("-naive", "-alg1", "-alg2", "-interlaced"))

    @property
    def is_split(self) -> bool:
        """Return whether backwards are passes for inputs and for weights."""
        return self.name.startswith(("zb", "v-half", "dualpipev"))


SCHEDULES = (
    ScheduleChoice("1f1b"),
    ScheduleChoice("interleaved", 2),
    ScheduleChoice("zb-h1"),
    ScheduleChoice("zbv", 2),
    ScheduleChoice("v-half", 2),
    ScheduleChoice("1f1b-alg1"),
    ScheduleChoice("1f1b-alg2"),
    ScheduleChoice("interleaved", 4),
)


class BatchChoice(NamedTuple):
    """Microbatches of each replica and step, and how they are made and ordered."""

    microbatches: int
    grouping: str = "balanced"
    ordering: str = "given"


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The six choices; `stages` without the encoder's where that is elsewhere."""

    placement: str
    sizes: Sizes
    schedule: ScheduleChoice
    batch: BatchChoice
    stages: tuple[int, ...]
    recompute: tuple[tuple[int, ...], ...]

    @property
    def unit(self) -> Unit:
        """Return the pipeline's sizes."""
        return self.sizes.pipeline

    def recomputed(self) -> "JobPlan":
        """Return the plan with all layers recomputed."""
        return replace(self, recompute=tuple(tuple(range(size)) for size in self.stages))

    def layout(self, cp: int = 1) -> ParallelLayout:
        """Return the pipeline's layout, as memory and times are computed of it."""
        unit = self.unit
        return ParallelLayout(
            tp=unit.tp, pp=unit.pp, dp=unit.dp, cp=cp, vpp=self.schedule.chunks,
            microbatches=self.batch.microbatches, schedule=self.schedule.name,
            stages=self.stages, recompute=self.recompute, spread_vocabulary=self.schedule.spread,
        )  # fmt: skip

    def __str__(self) -> str:
        """Return it in one line, as reports have it."""
        tp, dp, pp = self.unit.tp, self.unit.dp, self.unit.pp
        again, vpp = sum(map(len, self.recompute)), self.schedule.chunks
        parts = [f"dp {dp} tp {tp} pp {pp}", self.schedule.name + (f" x {vpp}" if vpp > 1 else "")]
        if encoder := self.sizes.encoder:
            parts.append(f"encoder dp {encoder.dp} tp {encoder.tp} pp {encoder.pp}")
        elif self.placement != "none":
            parts.append(f"encoder {self.placement}")
        parts.append(f"{self.batch.microbatches} microbatches")
        return ", ".join([*parts, f"{again} of {sum(self.stages)} layers recomputed"])


@dataclass(frozen=True, slots=True)
class StepLoads:
    """A step's microbatches: of the replica with the most work, and what the mean has of it.

    `padding`: the share of the work that is padding. `most`: the largest amounts of a microbatch.
    """

    microbatches: tuple[Amounts, ...]
    mean_share: float = 1.0
    padding: float = 0.0
    most: Amounts = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """What a plan is made for.

    `batch`: samples of a step, and `amounts` of all of them together. `loads`: the microbatches of
    a step for (dp, batch). `arrange`: the order of microbatches that an ordering makes on a number
    of ranks, of forward and backward ns (stages, microbatches). `tensor`: sizes of TP to try.
    """

    model: Model
    device: Device
    gpus: int
    memory_bytes: int
    batch: int
    amounts: Amounts
    loads: Callable[[int, BatchChoice], StepLoads]
    arrange: Callable[[str, int, Ints, Ints], Sequence[int]] | None = None
    cp: int = 1
    tensor: tuple[int, ...] = TENSOR_SIZES
    placements: tuple[str, ...] = PLACEMENTS
    schedules: tuple[ScheduleChoice, ...] = SCHEDULES

    def __post_init__(self) -> None:
        """Raise ValueError for sizes that contradict each other."""
        if min(self.gpus, self.batch, self.cp, self.memory_bytes, *self.tensor) < 1:
            raise ValueError("GPUs, samples of a step, CP, TP and memory must be 1 or more")
        if self.gpus % self.cp:
            raise ValueError(f"{self.gpus} GPUs do not divide into CP {self.cp}; use a divisor")
        if unknown := set(self.placements) - set(PLACEMENTS):
            raise ValueError(
                f"unknown placement {sorted(unknown)[0]!r}; known are {', '.join(PLACEMENTS)}"
            )
        if any(part.kind == GENERATOR for part in self.model.parts):
            raise ValueError(
                f"{self.model.name} has a generator, which no plan of a whole job places; use "
                "--only orchestrate"
            )

    @cached_property
    def parts(self) -> Mapping[str, Model]:
        """Return the whole model, its language model, and its encoders."""
        names = [part.name for part in self.model.encoders]
        models = {WHOLE: self.model, LANGUAGE: self.model.only(self.model.language.name)}
        return models | ({ENCODER: self.model.only(*names)} if names else {})

    @cached_property
    def encoder_layers(self) -> int:
        """Return the layers of all encoders."""
        return sum(len(part.layers) for part in self.model.encoders)

    def pipeline(self, placement: str) -> str:
        """Return the part of the model that is the pipeline's."""
        return WHOLE if placement in ("first", "none") else LANGUAGE

    def choose_placement(self, _: tuple[Any, ...]) -> Sequence[str]:
        """Return where the encoder may be."""
        return self.placements if self.encoder_layers else ("none",)

    def choose_sizes(self, chosen: tuple[Any, ...]) -> Iterator[Sizes]:
        """Yield the sizes that fill the GPUs, and need no more samples than there are."""
        (placement,) = chosen
        gpus, layers = self.gpus // self.cp, self.parts[self.pipeline(placement)].layers
        for tp in self.tensor:
            for pp in range(1, min(layers, MOST_STAGES, gpus // tp) + 1):
                if placement == "units":
                    yield from self._with_encoder(gpus, tp, pp)
                elif gpus % (tp * pp) == 0 and (dp := gpus // (tp * pp)) <= self.batch:
                    yield Sizes(Unit(tp, dp, pp))

    def _with_encoder(self, gpus: int, tp: int, pp: int) -> Iterator[Sizes]:
        for dp in divisors(self.batch):
            left = gpus - tp * dp * pp
            for encoder_tp in self.tensor if left > 0 else ():
                for deep in (1, 2, 4):
                    # More replicas than microbatches have nothing to do.
                    replicas = min(left // (encoder_tp * deep), self.batch)
                    if replicas and deep <= self.encoder_layers:
                        yield Sizes(Unit(tp, dp, pp), Unit(encoder_tp, replicas, deep))

    def choose_schedule(self, chosen: tuple[Any, ...]) -> Iterator[ScheduleChoice]:
        """Yield the schedules of a pipeline; one rank needs none."""
        placement, sizes = chosen
        pp, layers = sizes.pipeline.pp, self.parts[self.pipeline(placement)].layers
        for choice in self.schedules[:1] if pp == 1 else self.schedules:
            known = placement != "units" or choice.name in ("1f1b", "interleaved")
            if known and pp * choice.chunks <= layers:
                yield choice

    def choose_batch(self, chosen: tuple[Any, ...]) -> Iterator[BatchChoice]:
        """Yield numbers of microbatches: one a stage, twice as many ..., one for each sample."""
        placement, sizes, schedule = chosen
        most, pp = self.batch // sizes.pipeline.dp, sizes.pipeline.pp
        counts = {pp << k for k in range(MOST_ROUNDS.bit_length()) if pp << k <= most}
        counts |= {min(MOST_ROUNDS * pp, most // pp * pp or most)}
        # Rounds of interleaved schedules are whole, and folded ones fill both arms.
        whole = (n for n in sorted(counts) if schedule.chunks == 1 or n % pp == 0)
        for count in whole:
            yield BatchChoice(count)
            known = schedule.name == "1f1b" or (
                schedule.name == "interleaved" and placement != "units"
            )
            if self.arrange and pp > 1 and known:
                yield BatchChoice(count, ordering="two_opt")
