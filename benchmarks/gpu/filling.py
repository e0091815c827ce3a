"""Encoder layers in the bubbles of a pipeline: planned from measured passes, and run."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from counterpoise.sched.bubble_filling.filled_program import (
    EncoderTimes,
    fill_between_passes,
    fill_program,
)
from counterpoise.sched.ir.registry import schedule
from counterpoise.sched.runtime import EncoderSpec, Pipeline
from counterpoise.sched.simulation.costs import Costs

from ..encoder.cases import encoders_first
from ..runtime.model import PipelineSizes, make_batch, make_stages, summed_loss
from .parts import Row, Task, over, seconds_of, spread_ms, turns_of

LAYERS, TILES = 2, 8
WAYS = {
    "first": "encoders before and after", "filled": "encoders in the bubbles",
    "alone": "no encoders",
}  # fmt: skip


class _First(nn.Module):
    """The first stage, which reads the encoder's features."""

    def __init__(self, stage: nn.Sequential) -> None:
        super().__init__()
        self.embed, self.rest = stage[0], stage[1:]

    def forward(self, ids: Tensor, *features: Tensor) -> Tensor:
        """Add the features' mean to the embeddings."""
        x = self.embed(ids)
        for each in features:
            x = x + each.mean(0)
        found: Tensor = self.rest(x)
        return found


class FillingRank:
    """One rank of a pipeline that runs three programs."""

    def __init__(self, rank: int, task: Task, sizes: PipelineSizes) -> None:
        self.rank, self.task, self.sizes = rank, task, sizes
        self.mesh = init_device_mesh(task.device, (sizes.ranks,), mesh_dim_names=("pp",))
        batch = make_batch(sizes)
        pixels = torch.randn(TILES, sizes.hidden)
        info = SimpleNamespace(
            costs={"tokens": sizes.tokens, "tiles": TILES},
            step_label_tokens=batch.labels.numel(), step_samples=sizes.microbatches,
        )  # fmt: skip
        batches = [
            {"input_ids": ids, "labels": labels, "pixel_values": pixels}
            for ids, labels in zip(batch.ids, batch.labels, strict=True)
        ]
        self.given = SimpleNamespace(microbatches=batches, infos=[info] * sizes.microbatches)
        self.pipes: dict[str, Pipeline] = {}

    def _stage(self) -> nn.Module:
        stage: Any = make_stages(self.sizes, self.sizes.ranks)[self.rank]
        return (stage if self.rank else _First(stage)).to(self.task.device)

    def _layers(self) -> list[nn.Module]:
        h = self.sizes.hidden
        return [
            nn.Sequential(nn.LayerNorm(h), nn.Linear(h, 16 * h), nn.GELU(), nn.Linear(16 * h, h))
            .to(self.task.device)
            for _ in range(LAYERS)
        ]  # fmt: skip

    def pass_times(self) -> list[int]:
        """Return the ns of a stage's forward and backward, then of an encoder layer's."""
        device = self.task.device
        hidden = torch.randn(self.sizes.tokens, self.sizes.hidden, device=device)
        ids = self.given.microbatches[0]["input_ids"].to(device)
        pixels = torch.randn(TILES, self.sizes.hidden, device=device, requires_grad=True)
        found: list[int] = []
        made: list[Tensor] = []
        inputs = hidden.requires_grad_() if self.rank else ids
        for module, x in ((self._stage(), inputs), (self._layers()[0], pixels)):
            for _ in range(3):  # the first ones choose kernels
                forward = seconds_of(partial(_keep, made, module, x), device)
                backward = seconds_of(lambda: made.pop().sum().backward(), device)  # type: ignore[no-untyped-call]
            found += [int(1e9 * forward), int(1e9 * backward)]
        return found

    def build(self, times: tuple[int, int, int, int]) -> None:
        """Make the pipelines of a plan from the slowest rank's times."""
        forward, backward, *layer = times
        program = schedule("1f1b", ranks=self.sizes.ranks, microbatches=self.sizes.microbatches)
        encoder = EncoderTimes((layer[0],) * LAYERS, (layer[1],) * LAYERS)
        host, plan = fill_between_passes(program, Costs({"F": forward, "B": backward}), [encoder])
        filled = fill_program(host, plan)
        programs = {"filled": filled, "first": encoders_first(filled), "alone": program}
        for name, each in programs.items():
            spec = EncoderSpec(
                "vision", self._layers(), tokens={"tiles": 1}, width=self.sizes.hidden
            )
            self.pipes[name] = Pipeline(
                self.mesh, schedule=lambda *_, each=each: each, stages={self.rank: self._stage()},
                encoders=[spec] if each.edges else [], hidden=self.sizes.hidden, loss=summed_loss,
                deadline_s=60, replan="off",
            )  # fmt: skip

    def step(self, name: str) -> float:
        """Return the seconds of a step that all ranks begin together."""
        dist.barrier()
        return seconds_of(lambda: self.pipes[name].step(self.given), self.task.device)


def _keep(made: list[Tensor], module: nn.Module, x: Tensor) -> None:
    made.append(module(x))


def measure_filling(task: Task) -> list[Row]:
    """Return a row for each program."""
    ranks = min(task.devices, 4)
    small = PipelineSizes(ranks, 2 * ranks, ranks, 32, 16, 64)
    sizes = small if task.small else PipelineSizes(ranks, 4 * ranks, 2 * ranks, 2048, 2048, 32768)
    with task.start(FillingRank, ranks, sizes) as processes:
        measured = processes.call("pass_times")
        processes.call("build", tuple(max(each) for each in zip(*measured, strict=True)))
        times = turns_of(processes, "step", tuple(WAYS), task.seconds)
    return [
        {"program": WAYS[way], "ranks": str(ranks), "step, ms": spread_ms(times[way]),
         "over encoders before and after": over(times[way], times["first"])}
        for way in WAYS
    ]  # fmt: skip
