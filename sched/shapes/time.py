"""The time of every stage and of a step: passes, transfers, gradients' collectives, optimizer.

The step is simulated with the layout's schedule. Each rank then reduces its gradients and updates
its parameters; nothing of that overlaps, so a step is an upper bound where a framework hides it.
Vocabulary passes and encoders in bubbles are not in this step: `sched/generators/vocabulary` and
`sched/bubble_filling` have programs of their own, made from the same layers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..ir.program import Program
from ..ir.registry import schedule
from ..simulation.costs import Costs
from ..simulation.simulator import simulate
from ..simulation.timeline import Timeline
from .device import Device
from .layers import LayerCost, layer_costs
from .layout import ParallelLayout
from .memory import StageCost, rank_stages, rank_states, rank_working, stage_costs
from .model import Amounts, Model


@dataclass(frozen=True, slots=True)
class StepTime:
    """Times of each rank's collectives and optimizer at the step's end."""

    reduce_ns: tuple[int, ...]
    optimizer_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """A simulated step: its timeline, its whole time, and every rank's peak of memory."""

    timeline: Timeline
    total_ns: int
    memory_bytes: tuple[int, ...] = ()


def step_end(layers: Sequence[LayerCost], device: Device, layout: ParallelLayout) -> StepTime:
    """Return the times of the step's end of a chain of layers that is cut by a layout.

    Raises ValueError if the layout's stages do not add up to the layers.
    """
    reduce, optimizer = [0] * layout.pp, [0] * layout.pp
    for rank, stage in zip(layout.placement, stage_costs(layers, layout), strict=True):
        reduce[rank] += _reduce_ns(stage.parameters, stage.trained, device, layout)
        share = layout.replicas if layout.zero else 1
        optimizer[rank] += optimizer_ns(device, -(-stage.trained // share))
    return StepTime(tuple(reduce), tuple(optimizer))


def optimizer_ns(device: Device, parameters: int) -> int:
    """Return Adam's time in mixed precision, bound by memory.

    It reads and writes the fp32 weight and two moments, reads a gradient and writes a bf16 copy.
    """
    return parameters * (2 * 12 + 4 + 2) * 10**9 // device.memory_bytes_per_s


def step(
    model: Model, device: Device, layout: ParallelLayout, microbatches: Sequence[Amounts] | Amounts
) -> SimulatedStep:
    """Simulate a step on microbatches of these amounts, or on equal ones.

    Raises ValueError as `step_end` and `schedule` do, and for another number of microbatches.
    """
    if isinstance(microbatches, Mapping):
        microbatches = [microbatches] * layout.microbatches
    # Few differ where data are drawn from a table; each is priced once.
    keys = [tuple(sorted(amounts.items())) for amounts in microbatches]
    chains = {key: layer_costs(model, device, layout, dict(key)) for key in dict.fromkeys(keys)}
    return simulate_step([chains[key] for key in keys], device, layout)


def simulate_step(
    chains: Sequence[Sequence[LayerCost]], device: Device, layout: ParallelLayout
) -> SimulatedStep:
    """Simulate a step of microbatches with these layers each. Raises ValueError as `step` does."""
    if len(chains) != layout.microbatches:
        raise ValueError(f"{len(chains)} microbatches of {layout.microbatches}; give all")
    known = {id(chain): stage_costs(chain, layout) for chain in chains}
    costs = _step_costs([known[id(chain)] for chain in chains], device, layout)
    timeline = simulate(step_program(layout), costs)
    ends = [row[-1].end_ns if row else 0 for row in timeline.ranks]
    after = step_end(chains[0], device, layout)
    tails = zip(ends, after.reduce_ns, after.optimizer_ns, strict=True)
    memory = [
        peak + max(rank_working(rank_stages(cut, layout, rank), layout) for cut in known.values())
        for rank, peak in enumerate(timeline.peak_bytes)
    ]
    return SimulatedStep(timeline, max(sum(tail) for tail in tails), tuple(memory))


def step_program(layout: ParallelLayout) -> Program:
    """Return the layout's program. Raises ValueError for sizes that the schedule has none for."""
    options = {"chunks": layout.vpp} if layout.schedule == "interleaved" else {}
    sizes = {"ranks": layout.pp, "microbatches": layout.microbatches}
    program = schedule(layout.schedule, **sizes, **options)
    if program.placement != layout.placement:
        raise ValueError(
            f"{layout.schedule} has {program.stages} stages on {layout.pp} ranks; vpp is "
            f"{layout.vpp}, give {program.stages // layout.pp}"
        )
    return program


def _step_costs(
    microbatches: Sequence[Sequence[StageCost]], device: Device, layout: ParallelLayout
) -> Costs:
    """Return the simulator's costs of microbatches with stages of these costs."""

    def table(cost: Callable[[StageCost], int]) -> list[list[int]]:
        return [[cost(stage) for stage in column] for column in zip(*microbatches, strict=True)]

    # The slowest microbatch's transfers: messages have one time for all.
    lags = [[0] * layout.pp for _ in range(layout.pp)]
    for stages in microbatches:
        for (a, b), stage in zip(pairwise(layout.placement), stages, strict=False):
            lags[a][b] = lags[b][a] = max(lags[a][b], device.send_ns(stage.output_bytes))
    held_bytes = table(lambda stage: stage.activations + stage.logits)
    ranks = (rank_stages(microbatches[0], layout, rank) for rank in range(layout.pp))
    return Costs(
        {
            "F": table(lambda stage: stage.forward_ns),
            "B": table(lambda stage: stage.backward_ns),
            "I": table(lambda stage: stage.backward_ns - stage.weight_ns),
            "W": table(lambda stage: stage.weight_ns),
        },
        p2p_ns=lags,
        buffer_bytes={"activation": held_bytes, "weight": held_bytes},
        parameter_bytes=[sum(rank_states(stages, layout)) for stages in ranks],
        overlap=layout.overlap,
    )


def _reduce_ns(parameters: int, trained: int, device: Device, layout: ParallelLayout) -> int:
    """Return the collectives of a stage's parameters in a step.

    Gradients are scattered, and weights (ZeRO-0: gradients) gathered. ZeRO-2 scatters for each
    microbatch, and ZeRO-3 gathers for each forward and backward.
    """

    def ns(size: int) -> int:
        return device.gather_ns(size, layout.replicas, across=True) if trained or size else 0

    scatter, gather = layout.gradient_bytes * trained, layout.weight_bytes * trained
    times = layout.microbatches if layout.zero >= 2 else 1
    if layout.zero == 3:
        return times * (ns(scatter) + 2 * ns(layout.weight_bytes * parameters))
    return times * ns(scatter) + ns(scatter if layout.zero == 0 else gather)
