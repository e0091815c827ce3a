"""What plans take: steps by the simulator, and memory.

Nothing here models costs: times and bytes of layers are those of `sched.shapes`. A plan's step is
that of the replica with the most work, with gradients and optimizer after it; its memory is that of
microbatches that are all as large as the largest, which budgets allow.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ...bubble_filling.filled_program import EncoderTimes, with_encoders
from ...ir.graph import Graph, make_graph
from ...ir.kinds import layer_kind
from ...ir.program import Pass, Program
from ...shapes import (
    Amounts,
    LayerCost,
    ParallelLayout,
    chain_memory,
    layer_costs,
    memory,
    output_layer,
    step_end,
)
from ...simulation.costs import Costs
from ...simulation.simulator import node_times
from ..orchestration.simulated import units_program
from ..orchestration.units import Unit, microbatches_ahead
from ..stage_split import even_stages
from .plan import ENCODER, BatchChoice, Floats, Ints, Job, JobPlan, StepLoads

T = TypeVar("T")
# Of each rank the ns for gradients, and for the optimizer.
StepEnd = tuple[tuple[int, ...], tuple[int, ...]]
# Pieces of an encoder's copy: a program of all its layers would be as long as the model is deep.
PIECES = 2
# Rates are computed for an amount so large that rounding does not matter.
_MANY = 10**6


class LayerTable(NamedTuple):
    """Of each layer and microbatch (layers, microbatches): ns, and the bytes handed on."""

    forward: Ints
    backward: Ints
    weight: Ints
    again: Ints
    handed: Ints

    @property
    def work(self) -> Ints:
        """Return each microbatch's time through all layers and back."""
        microbatch_ns: Ints = (self.forward + self.backward).sum(axis=0)
        return microbatch_ns


@dataclass(frozen=True, slots=True)
class Priced:
    """A step in ns, and what it was simulated from; `ends`: of each rank, before the step's end."""

    step_ns: int
    program: Program
    costs: Costs
    end_ns: tuple[int, ...]
    reduce_ns: tuple[int, ...]
    optimizer_ns: tuple[int, ...]


class Simulated:
    """What plans of a job take; whatever was computed is kept."""

    def __init__(self, job: Job) -> None:
        """Simulate the plans of this job."""
        self.job = job
        self._cache: dict[Hashable, Any] = {}

    def keep(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what was made for a key, or make it."""
        if key not in self._cache:
            self._cache[key] = make()
        cached: T = self._cache[key]
        return cached

    def loads(self, dp: int, batch: BatchChoice) -> StepLoads:
        """Return a step's microbatches; their order is another matter."""
        key = batch._replace(ordering="given")
        return self.keep(("loads", dp, key), lambda: self.job.loads(dp, key))

    def chain(
        self, part: str, unit: Unit, amounts: Amounts, spread: bool = False
    ) -> tuple[LayerCost, ...]:
        """Return the layers of a part of the model for a microbatch.

        Of a pipeline's depth they only depend on whether it has several stages.
        """
        tp, deep = unit.tp, min(2, unit.pp)

        def make() -> tuple[LayerCost, ...]:
            like = ParallelLayout(tp=tp, cp=self.job.cp, pp=deep, spread_vocabulary=spread)
            return layer_costs(self.job.parts[part], self.job.device, like, amounts)

        return self.keep((part, tp, deep, spread, tuple(amounts.values())), make)

    def layers(self, plan: JobPlan, amounts: Amounts) -> tuple[LayerCost, ...]:
        """Return the layers of a plan's pipeline for a microbatch."""
        part = self.job.pipeline(plan.placement)
        return self.chain(part, plan.unit, amounts, plan.schedule.spread)

    def most(self, plan: JobPlan) -> Amounts:
        """Return the largest amounts of a microbatch of a plan."""
        return self.loads(plan.unit.dp, plan.batch).most

    def table(
        self, part: str, unit: Unit, batch: BatchChoice, dp: int, spread: bool = False
    ) -> LayerTable:
        """Return the layers' times for the microbatches of the heaviest of dp replicas."""

        def make() -> LayerTable:
            fixed, rates = self._rates(part, unit, spread)
            loads = self.loads(dp, batch).microbatches
            amounts = np.array([[load[name] for name in self.job.amounts] for load in loads])
            return LayerTable(*np.rint(fixed[:, :, None] + rates @ amounts.T).astype(np.int64))

        sizes = unit.tp, min(2, unit.pp), spread, dp
        return self.keep(("table", part, *sizes, batch.microbatches, batch.grouping), make)

    def _rates(self, part: str, unit: Unit, spread: bool) -> tuple[Floats, Floats]:
        """Return what a layer's costs are made of: (costs, layers) and, by resource, one more.

        They are linear in a microbatch's amounts, but for their rounding.
        """
        names = tuple(self.job.amounts)
        costs = ("forward_ns", "backward_ns", "weight_ns", "recompute_ns", "output_bytes")

        def tabulate(amounts: Amounts) -> Floats:
            chain = self.chain(part, unit, amounts, spread)
            return np.array([[getattr(layer, cost) for layer in chain] for cost in costs], float)

        none = dict.fromkeys(names, 0)
        fixed = tabulate(none)
        slopes = [(tabulate(none | {name: _MANY}) - fixed) / _MANY for name in names]
        return fixed, np.stack(slopes, axis=2)

    def memory(self, plan: JobPlan, priced: Priced | None = None) -> tuple[int, ...]:
        """Return the bytes of each rank's fullest GPU, the encoder's unit first.

        `priced`: the plan's step, from which it is read how many microbatches copies of an encoder
        hold; without it two are counted.
        """
        pipeline, front = self.keep((plan, "memory"), lambda: self._memory(plan))
        if plan.placement == "bubbles":
            pipeline = tuple(map(sum, zip(pipeline, self._copies_bytes(plan, priced), strict=True)))
        return front + pipeline

    def _memory(self, plan: JobPlan) -> tuple[tuple[int, ...], tuple[int, ...]]:
        most, layout = self.most(plan), plan.layout(self.job.cp)
        if plan.schedule.spread:
            model = self.job.parts[self.job.pipeline(plan.placement)]
            ranks = memory(model, self.job.device, layout, most)
        else:
            ranks = chain_memory(self.layers(plan, most), layout)
        return tuple(rank.total for rank in ranks), tuple(self._unit_bytes(plan))

    def _copies_bytes(self, plan: JobPlan, priced: Priced | None) -> list[int]:
        """Return the bytes of each rank's copy of the encoder; all ranks share its optimizer."""
        unit, count = plan.unit, self.job.encoder_layers
        layout = ParallelLayout(tp=unit.tp, dp=unit.dp * unit.pp, cp=self.job.cp, stages=(count,))
        encoder = chain_memory(self.chain(ENCODER, unit, self.most(plan)), layout)[0]
        held = [min(2, -(-plan.batch.microbatches // unit.pp))] * unit.pp
        if priced is not None:
            held = [_most_held(row) for row in priced.program.ranks]
        return [encoder.total + (peak - 1) * encoder.activations for peak in held]

    def _unit_bytes(self, plan: JobPlan) -> list[int]:
        """Return the bytes of an encoder's unit, [] without one.

        In 1F1B it holds microbatches for the stages behind it, those of the pipeline included.
        """
        encoder = plan.sizes.encoder
        if encoder is None:
            return []
        layout = self._unit_layout(plan, encoder)
        behind = microbatches_ahead(Unit(pp=plan.unit.pp, vpp=plan.schedule.chunks), 0)
        chain, sizes = self.chain(ENCODER, encoder, self.most(plan)), list[int]()
        for rank, peak in enumerate(chain_memory(chain, layout)):
            held = min(plan.batch.microbatches, encoder.pp - rank)
            kept_bytes = peak.activations // held
            live = min(plan.batch.microbatches, encoder.pp - rank + behind)
            behind_bytes = -(-live * kept_bytes * plan.unit.dp // encoder.dp)
            sizes.append(peak.total - peak.activations + behind_bytes)
        return sizes

    def _unit_layout(self, plan: JobPlan, unit: Unit) -> ParallelLayout:
        stages, count = even_stages(self.job.encoder_layers, unit.pp), plan.batch.microbatches
        return ParallelLayout(
            tp=unit.tp, pp=unit.pp, dp=unit.dp, cp=self.job.cp, stages=stages, microbatches=count
        )

    def priced(self, plan: JobPlan, *, copies: bool = True) -> Priced:
        """Return a plan's step, simulated; without `copies` of encoders none are in its bubbles."""
        copies = copies and plan.placement == "bubbles"
        return self.keep((plan, copies), lambda: self._simulated(plan, copies))

    def extra_ns(self, plan: JobPlan) -> tuple[list[int], list[int]]:
        """Return the ns of each of the pipeline's ranks for recomputation, and TP's collectives."""
        times, where = self._times(plan), plan.layout().placement
        free = replace(self.job.device, link_bytes_per_s=2**60, link_latency_ns=0)
        model = self.job.parts[self.job.pipeline(plan.placement)]
        like = replace(plan.layout(self.job.cp), stages=(), recompute="none")
        devices = self.job.device, free
        a, b = (layer_costs(model, device, like, self.most(plan)) for device in devices)
        both = [sum(layer.forward_ns + layer.backward_ns for layer in chain) for chain in (a, b)]
        share = 1 - both[1] / max(1, both[0])
        again, work = [0] * plan.unit.pp, [0] * plan.unit.pp
        for stage, rank in enumerate(where):
            again[rank] += int(times.again[stage].sum())
            work[rank] += int((times.forward[stage] + times.backward[stage]).sum())
        return again, [int(share * (a - b)) for a, b in zip(work, again, strict=True)]

    def _times(self, plan: JobPlan) -> LayerTable:
        """Return the same of stages in place of layers, recomputation in their backwards."""
        part, spread = self.job.pipeline(plan.placement), plan.schedule.spread
        table = self.table(part, plan.unit, plan.batch, plan.unit.dp, spread)
        return _by_stage(table, plan.stages, plan.recompute)

    def _step_end(self, plan: JobPlan) -> StepEnd:
        """Return the ns of each of the pipeline's ranks for gradients, and for the optimizer."""
        layout = replace(plan.layout(self.job.cp), recompute="none")

        def found() -> StepEnd:
            ends = step_end(self.layers(plan, self.most(plan)), self.job.device, layout)
            return ends.reduce_ns, ends.optimizer_ns

        return self.keep(("end", plan.placement, layout), found)

    def _joined(self, plan: JobPlan) -> tuple[LayerTable, tuple[int, ...], StepEnd]:
        """Return times by stage, the rank of each, and the step's end, an encoder's unit first."""
        times, encoder = self._times(plan), plan.sizes.encoder
        where, ends = plan.layout().placement, self._step_end(plan)
        if encoder is None:
            return times, where, ends
        front = self._unit_layout(plan, encoder)
        table = self.table(ENCODER, encoder, plan.batch, plan.unit.dp)
        # A replica of the encoder does what several of the pipeline need, or a part of one's.
        rows = _by_stage(table, front.stages, ())
        rows = LayerTable(*(-(-row * plan.unit.dp // encoder.dp) for row in rows))
        first = step_end(self.chain(ENCODER, encoder, self.most(plan)), self.job.device, front)
        return (
            LayerTable(*(np.concatenate(pair) for pair in zip(rows, times, strict=True))),
            (*range(encoder.pp), *(rank + encoder.pp for rank in where)),
            (first.reduce_ns + ends[0], first.optimizer_ns + ends[1]),
        )

    def _simulated(self, plan: JobPlan, copies: bool) -> Priced:
        times, where, (reduce, optimizer) = self._joined(plan)
        if plan.batch.ordering != "given" and self.job.arrange is not None:
            pair = times.forward, times.backward
            order = np.asarray(self.job.arrange(plan.batch.ordering, len(reduce), *pair))
            times = LayerTable(*(row[:, order] for row in times))
        costs = self._costs(plan, times, where, copies)
        program, graph = self._program(plan, costs, copies)
        nodes = node_times(graph, costs)
        last = np.zeros(len(reduce), np.int64)
        np.maximum.at(last, graph.rank, nodes.end[: graph.passes])
        end = tuple(last.tolist())
        step = max(map(sum, zip(end, reduce, optimizer, strict=True)))
        return Priced(step, program, costs, end, reduce, optimizer)

    def ordered_loads(self, plan: JobPlan) -> list[Amounts]:
        """Return the microbatches of a plan's step in the order in which they are run."""
        loads = self.loads(plan.unit.dp, plan.batch).microbatches
        if plan.batch.ordering == "given" or self.job.arrange is None:
            return list(loads)
        times, where, _ = self._joined(plan)
        pair = times.forward, times.backward
        return [loads[at] for at in self.job.arrange(plan.batch.ordering, max(where) + 1, *pair)]

    def stage_rates(self, plan: JobPlan) -> dict[str, Floats]:
        """Return ns of each kind's stages (stages, 1 + resources): fixed ones, then by resource.

        Passes of ranks (S, T, and pieces of encoders) are not linear in this sense: their means are
        what is fixed.
        """
        encoder, part = plan.sizes.encoder, self.job.pipeline(plan.placement)
        parts = [(part, plan.unit, plan.schedule.spread, plan.stages, plan.recompute, 1.0)]
        if encoder is not None:
            stages = self._unit_layout(plan, encoder).stages
            parts.insert(0, (ENCODER, encoder, False, stages, (), plan.unit.dp / encoder.dp))
        rows: list[LayerTable] = []
        for part, unit, spread, stages, policy, share in parts:
            fixed, rates = self._rates(part, unit, spread)
            costs = np.concatenate((fixed[:, :, None], rates), axis=2) * share
            rows.append(_by_stage(LayerTable(*costs), stages, policy))
        forward, backward, weight, *_ = map(np.concatenate, zip(*rows, strict=True))
        rates_by_kind: dict[str, Any] = {"F": forward, "B": backward}
        if plan.schedule.is_split:
            rates_by_kind |= {"W": weight, "I": backward - weight}
        for kind, table in self.priced(plan).costs.pass_ns.items():
            if kind[0] in "STE":
                mean = np.asarray(table, np.float64).mean(axis=1, keepdims=True)
                rates_by_kind[kind] = np.pad(mean, ((0, 0), (0, len(self.job.amounts))))
        return rates_by_kind

    def _costs(self, plan: JobPlan, times: LayerTable, where: Sequence[int], copies: bool) -> Costs:
        inputs = times.backward - times.weight
        passes: dict[str, Any] = {"F": times.forward, "B": times.backward}
        passes |= {"I": inputs, "W": times.weight}
        lags = self._lags(times, where)
        collectives = {}
        if plan.schedule.spread:
            passes |= self._output_passes(plan)
            size, pp = int(times.handed[-1].max()), plan.unit.pp
            ns = self.job.device.gather_ns(size, pp, across=True)
            collectives = {"CX": ns, "CG": ns, "CS": self.job.device.network_latency_ns}
        if copies:
            passes |= self._copied(plan)
        return Costs(passes, lags, collectives, {}, overlap=False)

    def _lags(self, times: LayerTable, where: Sequence[int]) -> Ints:
        """Return the ns of a message from rank to rank, of the largest microbatch."""
        lags = np.zeros((max(where) + 1,) * 2, np.int64)
        for (a, b), size in zip(pairwise(where), times.handed.max(axis=1), strict=False):
            if a != b:
                lags[a, b] = lags[b, a] = max(lags[a, b], self.job.device.send_ns(int(size)))
        return lags

    def _output_passes(self, plan: JobPlan) -> dict[str, list[list[int]]]:
        """Return the passes of an output layer that all ranks have a part of.

        Algorithm 2's S makes the inputs' gradients, too, and its T the weights' alone.
        """
        layout, model = plan.layout(self.job.cp), self.job.parts[self.job.pipeline(plan.placement)]
        rows: list[list[int]] = [[], []]
        for load in self.loads(plan.unit.dp, plan.batch).microbatches:
            layer = output_layer(model, self.job.device, layout, load)
            early = (layer.backward_ns - layer.weight_ns) * plan.schedule.name.endswith("alg2")
            rows[0].append(layer.forward_ns + early)
            rows[1].append(layer.backward_ns - early)
        return {kind: [row] * plan.unit.pp for kind, row in zip("ST", rows, strict=True)}

    def _copied(self, plan: JobPlan) -> dict[str, list[list[int]]]:
        """Return the times of an encoder's pieces on each rank, by microbatch."""
        table = self.table(ENCODER, plan.unit, plan.batch, plan.unit.dp)
        count = self.job.encoder_layers
        rows = _by_stage(table, even_stages(count, min(PIECES, count)), ())
        return {
            layer_kind(name, piece): [row.tolist()] * plan.unit.pp
            for name, times in (("EF", rows.forward), ("EB", rows.backward))
            for piece, row in enumerate(times)
        }

    def _program(self, plan: JobPlan, costs: Costs, copies: bool) -> tuple[Program, Graph]:
        """Return a plan's program and graph; programs without copies depend on sizes alone."""
        count, pp, encoder = plan.batch.microbatches, plan.unit.pp, plan.sizes.encoder
        if copies:
            plain = plan.schedule.program(pp, count)
            filled = with_encoders(plain, costs, [mean_encoder_times(costs)])
            return filled, make_graph(filled)

        def make() -> tuple[Program, Graph]:
            if encoder is None:
                program = plan.schedule.program(pp, count)
            else:
                pipeline = Unit(pp=pp, vpp=plan.schedule.chunks)
                program = units_program((Unit(pp=encoder.pp), pipeline), count)
            return program, make_graph(program)

        return self.keep((plan.schedule, pp, encoder and encoder.pp, count), make)


def _by_stage(
    table: LayerTable, stages: Sequence[int], recompute: Sequence[Sequence[int]]
) -> LayerTable:
    """Return the sums of layers, and of what is recomputed; bytes are those of the last layer."""
    starts = [0, *accumulate(stages)][:-1]
    forward, backward, weight = (
        np.add.reduceat(row, starts, axis=0)
        for row in (table.forward, table.backward, table.weight)
    )
    again = np.zeros_like(forward)
    for stage, positions in enumerate(recompute):
        if positions:
            layers = [starts[stage] + at for at in positions]
            again[stage] = table.again[layers].sum(axis=0)
    handed = table.handed[[end - 1 for end in accumulate(stages)]]
    return LayerTable(forward, backward + again, weight, again, handed)


def _most_held(row: Sequence[Pass]) -> int:
    """Return the most microbatches that a rank's copy of an encoder holds at a time."""
    held = peak = 0
    for pass_ in row:
        # From its first piece's forward to that piece's backward.
        held += (pass_.kind == layer_kind("EF", 0)) - (pass_.kind == layer_kind("EB", 0))
        peak = max(peak, held)
    return max(1, peak)


def mean_encoder_times(costs: Costs) -> EncoderTimes:
    """Return an encoder's mean times by piece, and each microbatch's share of them."""
    tables: dict[str, Any] = dict(costs.pass_ns)
    forward, backward = (
        [tables[kind][0] for kind in sorted(tables) if kind.startswith(name)]
        for name in ("EF", "EB")
    )
    mean = [max(1, sum(row) // len(row)) for row in forward]
    back = [sum(row) // len(row) for row in backward]
    shares = tuple(max(1, 1000 * ns // mean[0]) for ns in forward[0])
    return EncoderTimes(tuple(mean), tuple(back) if any(back) else (), shares)
