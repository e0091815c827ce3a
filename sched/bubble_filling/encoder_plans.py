"""The model planner: the parallelisms that encoders can have beside the language model's.

Optimus (2025), section 4.1: the encoders' pipeline size divides the language model's, so does
their tensor size; plans that do not fit the memory are out. Unlike the paper's section 4.5 this
counts the encoders' activations (all forwards of a step can precede all backwards), with and
without recomputing them.
"""

from dataclasses import dataclass

import numpy as np

from ..ir.program import Program
from ..ir.registry import schedule
from ..simulation.costs import Costs
from ..simulation.simulator import simulate
from ..simulation.timeline import Timeline
from .gaps import GATHER, SCATTER, Gaps, find_gaps, with_collectives
from .instance import FillProblem, make_work
from .setup import FillSetup, Kernel, Splitting, Stack, total_ns

WARMUPS = ("megatron", "reduced")


@dataclass(frozen=True, slots=True, order=True)
class EncoderPlan:
    """Encoder pipelines of `stages` ranks, each `tensor` GPUs wide."""

    stages: int
    tensor: int
    recompute: bool = True
    warmup: str = "megatron"


@dataclass(frozen=True, slots=True)
class Host:
    """The language model's step: its program, timeline and gaps, without encoders.

    `encoder_ns`: the encoders' collectives at its ends, which make it longer.
    """

    program: Program
    costs: Costs
    timeline: Timeline
    gaps: Gaps
    encoder_ns: int = 0


def host_step(
    setup: FillSetup, plan: EncoderPlan | None = None, *, whole_passes: bool = False
) -> Host:
    """Simulate the language model's step, with the warm-up and collectives of an encoder plan.

    `whole_passes`: whether nothing can run inside a pass, as with an executor that runs whole
    modules. Raises ValueError as `schedule` and `simulate` do.
    """
    sizes = {"ranks": setup.stages, "microbatches": setup.microbatches}
    if setup.chunks == 1:
        # Interleaved 1F1B of one chunk would hold twice as many microbatches for nothing.
        program = schedule("1f1b", **sizes)
    else:
        warmup = plan.warmup if plan else WARMUPS[0]
        program = schedule("interleaved", chunks=setup.chunks, warmup=warmup, **sizes)
    layer, per_stage = setup.model.layer, setup.model.layers // program.stages
    forward, backward = layer.forward, layer.backward_kernels(setup.recompute)
    saved = layer.checkpoint_bytes if setup.recompute else layer.saved_bytes
    gather, scatter = encoder_collectives(setup, plan) if plan else (0, 0)
    costs = Costs(
        {
            "F": total_ns(forward) * per_stage,
            "B": total_ns(backward) * per_stage,
            GATHER: setup.gather_ns + gather,
            SCATTER: setup.scatter_ns + scatter,
        },
        p2p_ns=setup.hop_ns,
        buffer_bytes={"activation": saved * per_stage},
        parameter_bytes=_states(setup, setup.model, setup.stages * setup.tensor, setup.data)
        + layer.at_work_bytes(setup.recompute),
    )
    program = with_collectives(program)
    timeline = simulate(program, costs)
    inside = {"F": forward * per_stage, "B": backward * per_stage}
    gaps = find_gaps(timeline, {} if whole_passes else inside)
    return Host(program, costs, timeline, gaps, gather + scatter)


def encoder_collectives(setup: FillSetup, plan: EncoderPlan) -> tuple[int, int]:
    """Return the times (ns) of the encoders' own all-gather and reduce-scatter, 0 if not modelled.

    They share the network with the language model's, one after another: the gather before its
    gather, the scatter after its scatter. Frozen encoders have no gradients to scatter.
    """
    stacks = setup.encoder_stacks(plan.tensor)
    share = plan.tensor * plan.stages
    held, trained = (
        sum(s.layer.parameters * s.layers for s in stacks if with_frozen or s.trainable) // share
        for with_frozen in (True, False)
    )
    return held * setup.encoder_gather_ns // 10**9, trained * setup.encoder_scatter_ns // 10**9


def plans(setup: FillSetup) -> tuple[EncoderPlan, ...]:
    """Return all plans: divisors of the language model's sizes that divide the encoders' layers.

    >>> from counterpoise.sched.bubble_filling.presets import case_setup
    >>> len(plans(case_setup("3072")))
    64
    """
    return tuple(
        EncoderPlan(stages, tensor, recompute, warmup)
        for warmup in WARMUPS[: min(2, setup.chunks)]
        for recompute in (True, False)
        for stages in range(1, setup.stages + 1)
        for tensor in sorted(setup.encoders, reverse=True)
        if not _mismatch(setup, stages, tensor)
    )


def _mismatch(setup: FillSetup, stages: int, tensor: int) -> str:
    if stages < 1 or setup.stages % stages:
        fit = [n for n in range(1, setup.stages + 1) if setup.stages % n == 0]
        return f"encoder pipelines of {stages} ranks do not divide {setup.stages}; use one of {fit}"
    if tensor < 1 or setup.tensor % tensor:
        fit = [n for n in range(1, setup.tensor + 1) if setup.tensor % n == 0]
        return f"encoders over {tensor} GPUs do not divide {setup.tensor}; use one of {fit}"
    for stack in setup.encoder_stacks(tensor):
        if stack.layers % stages:
            return f"{stack.layers} layers of {stack.layer.name} do not divide into {stages} stages"
    return ""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes per GPU of the language model and of the encoders, and what is available.

    `copies`: what the encoders' model states take in addition because a pipeline of the language
    model has several encoder pipelines beside it, as a share of all model states with one (Optimus,
    section 4.5).
    """

    model: int
    states: int
    per_microbatch: int
    available: int
    copies: float = 0.0

    @property
    def microbatches(self) -> int:
        """The number of microbatches whose encoder activations fit at once; below 1: none."""
        free = self.available - self.model - self.states
        return free // max(1, self.per_microbatch) if free >= 0 else -1


def memory(setup: FillSetup, plan: EncoderPlan, host: Host) -> Memory:
    """Return the memory of a plan, with what a backward of one layer needs on top."""
    model = max(host.timeline.peak_bytes)
    pipelines = (setup.stages // plan.stages) * (setup.tensor // plan.tensor)
    stacks = setup.encoder_stacks(plan.tensor)
    encoder = sum(
        _states(setup, stack, plan.stages * plan.tensor, setup.data * pipelines) for stack in stacks
    )
    trained = [stack for stack in stacks if stack.trainable]
    encoder += max((stack.layer.at_work_bytes(plan.recompute) for stack in trained), default=0)
    activations = sum(
        (stack.layer.checkpoint_bytes if plan.recompute else stack.layer.saved_bytes)
        * (stack.layers // plan.stages)
        for stack in trained
    )
    # The optimizer's states are sharded over all copies, so they are no more than with one.
    share = setup.stages * setup.tensor
    one_copy = sum(_states(setup, stack, share, 0) for stack in stacks)
    alone = _states(setup, setup.model, share, 0) + one_copy
    copies = (pipelines - 1) * one_copy / max(1, alone)
    return Memory(model, encoder, activations, setup.memory_bytes, copies)


def _states(setup: FillSetup, stack: Stack, share: int, replicas: int) -> int:
    """Return the bytes of a stack's model states on a GPU; without an optimizer for 0 replicas."""
    parameters = stack.layer.parameters * stack.layers // share
    if not stack.trainable:
        return 2 * parameters
    optimizer = setup.optimizer_bytes * parameters // replicas if replicas else 0
    return setup.state_bytes * parameters + optimizer


def plan_problem(
    setup: FillSetup,
    plan: EncoderPlan,
    host: Host,
    *,
    splitting: Splitting | None = None,
    whole_layers: bool = False,
) -> FillProblem:
    """Return the filling problem of one plan. `whole_layers`: a layer is one piece of work.

    Raises ValueError if the plan's sizes do not divide the model's, or it does not fit the memory.
    """
    if mismatch := _mismatch(setup, plan.stages, plan.tensor):
        raise ValueError(mismatch)
    need = memory(setup, plan, host)
    if need.microbatches < 1:
        raise ValueError(
            f"encoders in {plan.stages} stages over {plan.tensor} GPUs hold "
            f"{(need.states + need.per_microbatch) / 1e9:.1f} GB beside the language model's "
            f"{need.model / 1e9:.1f} of {need.available / 1e9:.1f} GB; cut them further"
        )
    stacks = setup.encoder_stacks(plan.tensor)
    forward, backward = encoder_kernels(stacks, plan)
    if whole_layers:
        forward, backward = ([_whole(layer) for layer in row] for row in (forward, backward))
    nominal = np.array([sum(map(total_ns, forward + backward))], np.int64)
    gather, scatter = encoder_collectives(setup, plan)
    return FillProblem(
        gaps=host.gaps,
        groups=group_ranks(setup.stages, plan.stages),
        copies=setup.tensor // plan.tensor,
        forward=make_work(forward, splitting=splitting, collective_ns=gather),
        backward=make_work(backward, splitting=splitting, collective_ns=scatter, backward=True),
        hop_ns=setup.hop_ns,
        nominal_ns=nominal,
        # A frozen encoder keeps nothing for a backward, so memory bounds nothing.
        most=need.microbatches if backward else None,
        encoders=tuple((stack.layers // plan.stages, stack.trainable) for stack in stacks),
    )


def group_ranks(ranks: int, width: int) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each encoder pipeline of `width` ranks.

    >>> group_ranks(4, 2)
    ((0, 1), (2, 3))
    """
    return tuple(tuple(range(first, first + width)) for first in range(0, ranks, width))


def encoder_kernels(
    stacks: tuple[Stack, ...], plan: EncoderPlan
) -> tuple[list[tuple[Kernel, ...]], list[tuple[Kernel, ...]]]:
    """Return one stage's layers in the order they run; frozen encoders have no backward."""
    forward = [s.layer.forward for s in stacks for _ in range(s.layers // plan.stages)]
    backward = [
        s.layer.backward_kernels(plan.recompute)
        for s in stacks[::-1]
        if s.trainable
        for _ in range(s.layers // plan.stages)
    ]
    return forward, backward


def _whole(layer: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    return (Kernel("layer", "compute", total_ns(layer)),)
