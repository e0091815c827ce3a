"""What processes run to try programs as they are: messages of a megabyte, no helper around."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from counterpoise.sched import Program, parse_program
from counterpoise.sched.runtime.compiled import collectives, compile_program, lowered
from counterpoise.sched.runtime.execution.walk import Walker, walk
from counterpoise.sched.runtime.links.process_groups import channels_of
from counterpoise.sched.runtime.parts import MicrobatchData, StepData, TensorSpec
from counterpoise.sched.runtime.stage.modules import StageOptions, Stages
from tests.sched.runtime.kept_groups import borrow_groups
from tests.sched.runtime.pool import WORLD

# Of a message; nothing of that size is buffered by the transport.
ELEMENTS = 1 << 18


class Scale(nn.Module):
    """A stage that multiplies by a number of its own."""

    def __init__(self, stage: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.0 + stage / 8))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


@dataclass(frozen=True)
class Outcome:
    """The loss, 0 on ranks without the last stage, and the gradient of every stage."""

    loss: float
    gradients: dict[int, float]


def inputs(microbatches: int) -> list[Tensor]:
    return [torch.full((1, ELEMENTS), (m + 1) / ELEMENTS) for m in range(microbatches)]


def run_alone(program: Program) -> Outcome:
    """What one process finds."""
    stages = [Scale(stage) for stage in range(program.stages)]
    loss = sum(nn.Sequential(*stages)(x).sum() for x in inputs(program.microbatches))
    assert isinstance(loss, Tensor)
    loss.backward()
    return Outcome(loss.item(), {n: _gradient(stage) for n, stage in enumerate(stages)})


def run_raw(rank: int, text: str, deadline_s: float, wait_sends: bool) -> Outcome:
    """Run a program on WORLD processes. Raises PeerLostError after the deadline, and KeyError.

    `wait_sends`: whether each send is waited for at once.
    """
    program = lowered(parse_program(text))
    lists = [compile_program(program, r) for r in range(WORLD)]
    pipeline = [tuple(range(WORLD))]
    groups = borrow_groups(pipeline, channels_of(lists), {}, torch.device("cpu"), deadline_s)
    groups.warm_up(60.0)
    own = {stage: Scale(stage) for stage in program.stages_of(rank)}
    options = StageOptions(inputs=("x",), labels=(), loss=torch.sum)
    part = Stages(program, own, options)
    spec = TensorSpec((1, ELEMENTS))
    fields = [MicrobatchData({"x": x}, 1.0, spec) for x in inputs(program.microbatches)]
    data = StepData(tuple(fields), (False, *(True,) * program.stages))
    part.begin_step(data)
    walker = Walker(
        dict.fromkeys(part.kinds, part),
        groups,
        collectives(program),
        reduce=lambda _: None,
        wait_sends=wait_sends,
    )
    running = walk(lists[rank], data, walker)
    arrived = None
    try:
        while True:
            arrived = running.send(arrived).wait(deadline_s)
    except StopIteration:
        groups.close()
    loss = part.finish_step()
    found = {stage: _gradient(module) for stage, module in own.items()}
    return Outcome(0.0 if loss is None else loss.item(), found)


def _gradient(module: Scale) -> float:
    assert module.weight.grad is not None
    return module.weight.grad.item()
