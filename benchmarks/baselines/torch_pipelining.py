"""Steps of torch.distributed.pipelining: the schedules that it shares with us, set for speed.

Sizes are given, so that ranks exchange none; outputs are not collected; the loss is scaled by
itself, so that gradients are not scaled afterwards.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

_SCHEDULES: Mapping[str, Any] = {
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zbv": ScheduleZBVZeroBubble,
}


@dataclass(frozen=True, slots=True)
class TorchSettings:
    """The arguments of torch's schedules. `late_receives`: their option `defer_pp_recv`."""

    microbatches: int
    loss: Callable[[Tensor, Tensor], Tensor]
    late_receives: bool = False
    device: str = "cpu"


class TorchSteps:
    """Training steps of one rank under one of torch's schedules.

    `examples`: the input of every stage and the last one's output, as tensors of a microbatch.
    """

    def __init__(
        self,
        schedule: str,
        stages: Mapping[int, nn.Module],
        examples: Sequence[Tensor],
        settings: TorchSettings,
    ) -> None:
        self.stages = dict(stages)
        self._count = len(examples) - 1
        parts = [
            PipelineStage(
                module, number, self._count, torch.device(settings.device),
                input_args=examples[number], output_args=examples[number + 1],
            )
            for number, module in sorted(stages.items())
        ]  # fmt: skip
        options: dict[str, Any] = {"loss_fn": settings.loss, "scale_grads": False}
        if schedule != "1f1b":
            options["defer_pp_recv"] = settings.late_receives
        given: Any = parts[0] if schedule == "1f1b" else parts
        self._schedule = _SCHEDULES[schedule](given, settings.microbatches, **options)

    def step(self, ids: Tensor, labels: Tensor) -> None:
        """Run forward and backward of a step, from ids and labels (microbatches, tokens)."""
        inputs = (ids.flatten(),) if 0 in self.stages else ()
        target = labels.flatten() if self._count - 1 in self.stages else None
        self._schedule.step(*inputs, target=target, losses=[], return_outputs=False)
