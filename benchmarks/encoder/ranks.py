"""A rank that trains sleeping stages and sleeping encoder layers, by several programs in turn."""

from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from counterpoise.sched import Replan
from counterpoise.sched.ir.program import Program
from counterpoise.sched.runtime import EncoderSpec, Pipeline, StageOptions, offer

from ..runtime.sleeping import SleepingStage
from .cases import RANKS, EncoderCase

_HIDDEN, _MS = 4, 1_000_000


class SleptStep(NamedTuple):
    """A step that was run: its makespan, and whether every rank ran its passes as planned."""

    makespan_ns: int
    in_order: bool


class _Stage(SleepingStage):
    """A stage that offers points: the last quarter of each part of its time is a wait."""

    def __init__(self, *times: int, points: int = 0) -> None:
        super().__init__(*times)
        self.points = points

    def _take(self, ns: int) -> None:
        if not self.points or not ns:
            super()._take(ns)
            return
        for _ in range(self.points):
            super()._take(ns * 3 // (4 * self.points))
            until = perf_counter_ns() + ns // (4 * self.points)
            offer(ns // (4 * self.points))
            super()._take(max(0, until - perf_counter_ns()))


class _FirstStage(_Stage):
    """A stage that reads the encoders' features."""

    def forward(self, x: Tensor, *features: Tensor) -> Tensor:
        """Sleep, and return a tensor of the same shape."""
        return super().forward(x + sum(0 * one.sum() for one in features))


class _Info(NamedTuple):
    """A microbatch of one token and one tile."""

    costs: Mapping[str, int]
    step_label_tokens: int
    step_samples: int


class _Step(NamedTuple):
    """A step of the training loop."""

    microbatches: list[dict[str, Tensor]]
    infos: list[_Info]


class EncoderRank:
    """One rank of all cases."""

    def __init__(self, rank: int, mesh: DeviceMesh | None = None) -> None:
        self._mesh = mesh or init_device_mesh("cpu", (RANKS,), mesh_dim_names=("pp",))
        self._rank = rank

    def measure(self, case: EncoderCase, rounds: int) -> dict[str, list[SleptStep]]:
        """Run all programs of a case in turn, after a round that is not measured."""
        plans = case.planned[0]._asdict()
        pipes = {n: sleeping_pipe(self._mesh, self._rank, case, p)[0] for n, p in plans.items()}
        found: dict[str, list[SleptStep]] = {name: [] for name in plans}
        for _ in range(rounds + 1):
            for name, pipe in pipes.items():
                pipe.step(sleeping_step(case))
                timeline = pipe.timeline()
                rows = tuple(tuple(slot.what for slot in row) for row in timeline.ranks)
                same = rows == plans[name].ranks
                found[name].append(SleptStep(timeline.makespan_ns, same))
        for pipe in pipes.values():
            pipe.close()
        return {name: steps[1:] for name, steps in found.items()}


def sleeping_pipe(
    mesh: DeviceMesh,
    rank: int,
    case: EncoderCase,
    program: Program,
    replan: Replan | Literal["off"] = "off",
) -> tuple[Pipeline, dict[int, SleepingStage]]:
    """Return the pipeline of a case on one rank, and the rank's stages."""
    times = case.forward * _MS, case.backward * _MS, 0
    points = case.points if program is case.planned[0].filled else 0
    stages: dict[int, SleepingStage] = {
        number: (_Stage if number else _FirstStage)(*times, points=points)
        for number in program.stages_of(rank)
    }
    pipe = Pipeline(
        mesh, schedule=lambda *_: program, stages=stages,
        encoders=[_encoder(case)] if program.edges else [], hidden=_HIDDEN,
        run=StageOptions(inputs=("x",)),
        loss=lambda output, labels: output.sum() + 0 * labels.sum(), deadline_s=60, replan=replan,
    )  # fmt: skip
    return pipe, stages


def _encoder(case: EncoderCase) -> EncoderSpec:
    times = case.encoder
    pairs = zip(times.forward_ns, times.backward_ns, strict=True)
    layers = [SleepingStage(*pair, 0) for pair in pairs]
    return EncoderSpec("vision", layers, tokens={"tiles": 1}, width=_HIDDEN, inputs=("pixels",))


def sleeping_step(case: EncoderCase) -> Any:
    """Return a step of the training loop."""
    one = torch.ones(1, _HIDDEN)
    batches = [{"x": one, "pixels": one, "labels": torch.ones(1)}] * case.microbatches
    info = _Info({"tokens": 1, "tiles": 1}, case.microbatches, 1)
    return _Step(batches, [info] * case.microbatches)
