"""The layout planner: search by the formula, then let the simulator choose.

The simulator counts what the formula leaves out: microbatches that differ, transfers behind
computation, memory over time, and the sum of the gradients at the end. A step ends when its
slowest pipeline does, so the one that is simulated is that of the encoder replica with the most
work. Programs are 1F1B over all stages of all modules; a module with virtual stages goes through
its chunks in rounds, as interleaved 1F1B does.

The formula uses mean samples only. Where samples differ, encoder and generator need headroom for
heavy ones, and the right amount is not known beforehand; so the search also runs as if they took
25 % and 50 % longer, and all candidates are simulated with the real samples. The baselines are
simulated too, so the plan is never slower.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...generators.interleaved import chunked_order
from ...generators.one_f_one_b import alternating, plain_order
from ...ir.program import Pass, Program
from ...simulation.costs import Costs
from ...simulation.simulator import simulate
from .baselines import baselines
from .search import Allocation, orchestrate
from .units import (
    BACKBONE,
    Module,
    OrchestrationProblem,
    Unit,
    behind,
    chunks_ahead,
    fullest,
    iteration_ns,
)

# A module's work for each sample of a step, in thousandths of the mean.
Work = Mapping[str, Sequence[int]]
MEAN = 1000


@dataclass(frozen=True, slots=True)
class RankedLayout:
    """A layout, its simulated time, and the bytes of the fullest GPU of each module."""

    layout: Allocation
    simulated_ns: int
    memory_bytes: tuple[int, ...]


def rerank(
    job: OrchestrationProblem, layouts: Sequence[Allocation], work: Work | None = None
) -> tuple[RankedLayout, ...]:
    """Return simulated layouts, the fastest first, ties in the given order.

    `work`: for modules whose samples differ, the work of some samples, used in turn. Raises
    ValueError for modules that do not exist or work that is not a whole number of 0 or more.
    """
    shares = dict(work or {})
    if unknown := set(shares) - {module.name for module in job.modules}:
        raise ValueError(f"work of {sorted(unknown)[0]!r}, which is no module of the model")
    for name, amounts in shares.items():
        if not amounts or min(amounts) < 0:
            raise ValueError(f"work of {name}: give whole numbers of 0 or more, at least one")
    ranked = [_candidate(job, layout, shares) for layout in layouts]
    return tuple(sorted(ranked, key=lambda layout: layout.simulated_ns))


def layout_program(
    job: OrchestrationProblem, layout: Allocation, work: Work | None = None
) -> tuple[Program, Costs]:
    """Return the program and costs of a layout, for the simulator."""
    replicas, ranks = layout.units[job.at].dp, sum(unit.pp for unit in layout.units)
    microbatches = job.batch // replicas
    forward: list[list[int]] = []
    backward: list[list[int]] = []
    activation, transfers, states = [], [], []
    for module, unit in zip(job.modules, layout.units, strict=True):
        stages, full = unit.pp * unit.vpp, fullest(module.layers, unit)
        rows = _rows((work or {}).get(module.name, (MEAN,)), replicas, unit.dp, microbatches)
        scale = MEAN * max(1, unit.dp // replicas)
        for table, ns in (
            (forward, module.forward_ns[unit.tp]),
            (backward, module.backward_ns[unit.tp]),
        ):
            table += [[_share(-(-ns * row // scale), module, stages) for row in rows]] * stages
        sample = -(-module.activation_bytes * replicas // unit.dp)
        activation += [-(-_share(sample, module, stages) // unit.tp)] * stages
        # What goes to any other rank is the output of the sending module.
        size = -(-module.output_bytes * replicas // unit.dp)
        transfers += [[-(-size * 1000 // job.link_mb_per_s)] * ranks] * unit.pp
        # What a rank always holds: states and its part of the optimizer's.
        held = -(-module.state_bytes * full // (module.layers * unit.tp))
        part = -(-module.optimizer_bytes * full // module.layers)
        states += [held + -(-part // (unit.tp * unit.dp))] * unit.pp
    costs = Costs(
        {"F": forward, "B": backward},
        p2p_ns=transfers,
        buffer_bytes={"activation": activation},
        parameter_bytes=states,
    )
    return units_program(layout.units, microbatches), costs


def _candidate(job: OrchestrationProblem, layout: Allocation, work: Work) -> RankedLayout:
    program, costs = layout_program(job, layout, work)
    timeline = simulate(program, costs)
    peaks, at = [], 0
    for unit in layout.units:
        peaks.append(max(timeline.peak_bytes[at : at + unit.pp]))
        at += unit.pp
    return RankedLayout(layout, timeline.makespan_ns + _gradients_ns(job, layout), tuple(peaks))


def _share(amount: int, module: Module, stages: int) -> int:
    """Return the fullest stage's part of an amount of the whole module, in whole layers."""
    return -(-amount * -(-module.layers // stages) // module.layers)


def _rows(amounts: Sequence[int], replicas: int, dp: int, microbatches: int) -> list[int]:
    """Return the work in each microbatch of the replica with the most work in all.

    Samples are assigned in turn: microbatch by microbatch, and within it replica by replica.

    >>> _rows([1, 2, 3, 4, 5, 6, 7, 80], replicas=4, dp=2, microbatches=2)
    [7, 87]
    """
    groups = min(dp, replicas)
    size = replicas // groups
    if len(amounts) == 1:
        return [size * amounts[0]] * microbatches
    best: list[int] = []
    for group in range(groups):
        row = [
            sum(amounts[(m * replicas + group * size + k) % len(amounts)] for k in range(size))
            for m in range(microbatches)
        ]
        if not best or sum(row) > sum(best):
            best = row
    return best


def _gradients_ns(job: OrchestrationProblem, layout: Allocation) -> int:
    """Return the time to sum gradients and gather parameters, of the module that takes longest.

    The bytes of the states on a GPU cross its link once; modules without optimizer have none.
    """
    times = [0]
    for module, unit in zip(job.modules, layout.units, strict=True):
        if module.optimizer_bytes:
            size = module.state_bytes * fullest(module.layers, unit) // (module.layers * unit.tp)
            travels = size * (unit.dp - 1) // unit.dp
            times.append(travels * 1000 // job.link_mb_per_s)
    return max(times)


def units_program(units: tuple[Unit, ...], microbatches: int) -> Program:
    """Return 1F1B through all units, interleaved within those that have several chunks.

    Raises ValueError where a unit has chunks and microbatches do not come in multiples of its pp.

    >>> print(units_program((Unit(), Unit(pp=2)), 3))
    schedule: units
    placement: 0 1 2
    microbatches: 3
    0: 0F0 0F1 0F2 0B0 0B1 0B2
    1: 1F0 1F1 1B0 1F2 1B1 1B2
    2: 2F0 2B0 2F1 2B1 2F2 2B2
    """
    rows: list[tuple[Pass, ...]] = []
    placement: list[int] = []
    for unit, after in zip(units, behind(units), strict=True):
        if unit.vpp > 1 and microbatches % unit.pp:
            raise ValueError(
                f"{microbatches} microbatches do not come in rounds of {unit.pp} stages, which "
                f"VPP {unit.vpp} needs; give a multiple"
            )
        first = len(placement)
        placement += list(range(len(rows), len(rows) + unit.pp)) * unit.vpp
        rows += [_row(unit, rank, after, first, microbatches) for rank in range(unit.pp)]
    return Program(tuple(rows), tuple(placement), microbatches, name="units")


def _row(unit: Unit, rank: int, after: int, first: int, microbatches: int) -> tuple[Pass, ...]:
    warmup = chunks_ahead(unit, after) - 1
    if unit.vpp == 1:
        return alternating(plain_order(first + rank), warmup - rank, microbatches)
    order = chunked_order(range(first + rank, first + unit.pp * unit.vpp, unit.pp), unit.pp)
    return alternating(order, warmup - 2 * rank, microbatches * unit.vpp)


HEADROOM_PERCENT = (100, 125, 150)


def plan_layouts(
    job: OrchestrationProblem, keep: int = 5, work: Work | None = None
) -> tuple[RankedLayout, ...]:
    """Return the `keep` fastest layouts in simulation, best first.

    `work` as `rerank` takes it. Raises ValueError as `orchestrate` and `rerank` do.
    """
    layouts: dict[Allocation, None] = {}
    for percent in HEADROOM_PERCENT if work else HEADROOM_PERCENT[:1]:
        for layout in orchestrate(_slower(job, percent), keep):
            layouts[Allocation(layout.units, iteration_ns(job, layout.units))] = None
    layouts |= dict.fromkeys(baselines(job).values())
    return rerank(job, tuple(layouts), work)[:keep]


def _slower(job: OrchestrationProblem, percent: int) -> OrchestrationProblem:
    """Return the job with encoder and generator taking `percent` of their time."""

    def slow(module: Module) -> Module:
        return replace(
            module,
            forward_ns={tp: ns * percent // 100 for tp, ns in module.forward_ns.items()},
            backward_ns={tp: ns * percent // 100 for tp, ns in module.backward_ns.items()},
        )

    return replace(job, modules=tuple(m if m.name == BACKBONE else slow(m) for m in job.modules))
