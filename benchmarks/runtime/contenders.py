"""One rank of a pipeline under our runtime or torch's: its steps, and what is asked of them."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.profiler import ProfilerActivity, profile

from counterpoise.sched.ir.program import Program
from counterpoise.sched.ir.registry import schedule as make_program
from counterpoise.sched.runtime import Pipeline

from ..baselines.torch_pipelining import TorchSettings, TorchSteps
from .model import (
    BenchBatch,
    PipelineSizes,
    largest_error,
    make_batch,
    make_idle_stages,
    make_stages,
    named_gradients,
    reference_gradients,
    summed_loss,
)
from .own_time import time_outside, time_step
from .saved_bytes import SavedStorages


@dataclass(frozen=True, slots=True)
class PipelineCase:
    """The task of a contender. `idle`: stages that do nothing, instead of the language model."""

    schedule: str
    sizes: PipelineSizes
    idle: bool = False
    late_receives: bool = False
    device: str = "cpu"


class Span(NamedTuple):
    """A step of one rank: start and end by the host's monotonic clock, CPU time of all threads."""

    start_ns: int
    end_ns: int
    cpu_ns: int


class RankOfSteps:
    """A rank of one contender.

    `stages`: its own. `run`: runs a step and leaves gradients. `passes`: of the rank in a step.
    """

    def __init__(
        self,
        setting: PipelineCase,
        stages: Mapping[int, nn.Module],
        run: Callable[[], None],
        passes: int,
    ) -> None:
        self.stages, self.passes = stages, passes
        self._setting, self._run = setting, run

    def steps(self, repeats: int) -> list[Span]:
        """Run steps that all ranks start together, after one that is not measured."""
        return [self._step() for _ in range(repeats + 1)][1:]

    def _step(self) -> Span:
        self._forget()
        dist.barrier()
        start, cpu = time.perf_counter_ns(), time.process_time_ns()
        self._run()
        if self._setting.device != "cpu":
            torch.accelerator.synchronize()
        return Span(start, time.perf_counter_ns(), time.process_time_ns() - cpu)

    def gradient_error(self) -> float:
        """Return the largest relative error of the rank's gradients, against one process."""
        self._forget()
        self._run()
        found = named_gradients(self.stages)
        sizes, count = self._setting.sizes, stage_count(self._setting)
        whole = [each.to(self._setting.device) for each in make_stages(sizes, count)]
        expected = reference_gradients(whole, self.stages, _batch(self._setting))
        return largest_error(found, expected)

    def saved_bytes(self) -> int:
        """Return the most bytes that a step holds of what autograd saved, without parameters."""
        self._forget()
        storages = SavedStorages(p for m in self.stages.values() for p in m.parameters())
        with storages.counting():
            self._run()
        return storages.most

    def peak_bytes(self) -> int:
        """Return the most bytes that the first step allocates, gradients and buffers included."""
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
            self._run()
        events = record.profiler.kineto_results.events()
        held = most = 0
        for _, change in sorted(
            (e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"
        ):
            held += change
            most = max(most, held)
        return most

    def own_us(self, outside: bool) -> float:
        """Return the main thread's CPU time of a step per pass.

        `outside`: without what autograd, modules and c10d take.
        """
        self._forget()
        dist.barrier()
        return (time_outside if outside else time_step)(self._run) / self.passes / 1e3

    def _forget(self) -> None:
        for module in self.stages.values():
            module.zero_grad(set_to_none=True)


def stage_count(setting: PipelineCase) -> int:
    """Return the number of stages of a setting's schedule."""
    return _program(setting).stages


def make_ours(rank: int, setting: PipelineCase) -> RankOfSteps:
    """Return a rank of our runtime."""
    sizes, batch = setting.sizes, _batch(setting)
    own = _own_stages(rank, setting)
    pipe = Pipeline(
        init_device_mesh(setting.device, (sizes.ranks,), mesh_dim_names=("pp",)),
        schedule=setting.schedule,
        stages=own,
        hidden=sizes.hidden,
        loss=_loss(setting),
        deadline_s=60,
    )
    info = SimpleNamespace(
        costs={"tokens": sizes.tokens}, step_label_tokens=batch.labels.numel(), step_samples=1
    )
    step = SimpleNamespace(
        microbatches=[
            {"input_ids": ids, "labels": labels}
            for ids, labels in zip(batch.ids, batch.labels, strict=True)
        ],
        infos=[info] * sizes.microbatches,
    )

    def run() -> None:
        pipe.step(step)

    return RankOfSteps(setting, own, run, len(_program(setting).ranks[rank]))


def make_torchs(rank: int, setting: PipelineCase) -> RankOfSteps:
    """Return a rank of torch's runtime."""
    sizes, batch = setting.sizes, _batch(setting)
    own = _own_stages(rank, setting)
    settings = TorchSettings(
        sizes.microbatches, _weighed(_loss(setting), batch), setting.late_receives, setting.device
    )
    steps = TorchSteps(setting.schedule, own, _examples(setting, batch), settings)
    return RankOfSteps(
        setting,
        own,
        lambda: steps.step(batch.ids, batch.labels),
        len(_program(setting).ranks[rank]),
    )


CONTENDERS = {"ours": make_ours, "torch": make_torchs}


def _program(setting: PipelineCase) -> Program:
    sizes = setting.sizes
    return make_program(setting.schedule, ranks=sizes.ranks, microbatches=sizes.microbatches)


def _own_stages(rank: int, setting: PipelineCase) -> dict[int, nn.Module]:
    program = _program(setting)
    make = make_idle_stages if setting.idle else make_stages
    stages = make(setting.sizes, program.stages)
    return {number: stages[number].to(setting.device) for number in program.stages_of(rank)}


def _batch(setting: PipelineCase) -> BenchBatch:
    made = make_batch(setting.sizes)
    return BenchBatch(made.ids.to(setting.device), made.labels.to(setting.device))


class _IdleLoss(nn.Module):
    """A loss that costs nothing; a module, so that its time is known to be no runtime's."""

    def forward(self, output: Tensor, labels: Tensor) -> Tensor:
        del labels
        # The gradient of a plain sum is one number, spread out; torch's runtime cannot send that.
        return output.square().sum()


def _loss(setting: PipelineCase) -> Callable[[Tensor, Tensor], Tensor]:
    return _IdleLoss() if setting.idle else summed_loss


def _weighed(
    loss: Callable[[Tensor, Tensor], Tensor], batch: BenchBatch
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss as a part of the step's mean, as torch's runtime wants it."""
    weight = 1.0 / batch.labels.numel()
    return lambda logits, labels: loss(logits, labels) * weight


def _examples(setting: PipelineCase, batch: BenchBatch) -> list[Tensor]:
    """Return tensors of the sizes of every stage's input and of the last one's output."""
    sizes = setting.sizes
    near: dict[str, Any] = {"device": setting.device, "requires_grad": True}
    hidden = torch.zeros(sizes.tokens, sizes.hidden, **near)
    words = sizes.hidden if setting.idle else sizes.words
    output = torch.zeros(sizes.tokens, words, **near)
    return [batch.ids[0], *[hidden] * (stage_count(setting) - 1), output]
