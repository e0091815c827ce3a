"""What plans take: bounds from work alone, and steps by the simulator.

Nothing here models costs: times and bytes of layers are those of `sched.shapes`. A plan's step is
that of the replica with the most work, with gradients and optimizer after it; its memory is that of
microbatches that are all as large as the largest, which budgets allow. Bounds are of the same
numbers: a rank works as long as its passes take, and starts and ends when a first microbatch has
come to it and a last one has gone back. They hold for any order of passes, so no plan is passed
over that could be the best.
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
from ...ir.registry import schedule
from ...shapes import (
    Amounts,
    LayerCost,
    ParallelLayout,
    layer_costs,
    memory,
    memory_of,
    output_layer,
    time_of,
)
from ...simulation.costs import Costs
from ...simulation.simulator import node_times
from ..orchestration.simulated import units_program
from ..orchestration.units import Unit, taken_in
from .plan import ENCODER, Batch, Floats, Ints, Job, JobPlan, Schedule, Sizes, StepLoads

T = TypeVar("T")
# Of each rank the ns for gradients, and for the optimizer.
StepEnd = tuple[tuple[int, ...], tuple[int, ...]]
# Pieces of an encoder's copy: a program of all its layers would be as long as the model is deep.
PIECES = 2
# Rates are computed for an amount so large that rounding does not matter.
_MANY = 10**6


class Table(NamedTuple):
    """Of each layer and microbatch (layers, microbatches): ns, and the bytes handed on."""

    forward: Ints
    backward: Ints
    weight: Ints
    again: Ints
    handed: Ints

    @property
    def work(self) -> Ints:
        """Return each microbatch's time through all layers and back."""
        found: Ints = (self.forward + self.backward).sum(axis=0)
        return found


@dataclass(frozen=True, slots=True)
class Priced:
    """A step in ns, and what it was simulated from; `ends`: of each rank, before the step's end."""

    step_ns: int
    program: Program
    costs: Costs
    end_ns: tuple[int, ...]
    reduce_ns: tuple[int, ...]
    optimizer_ns: tuple[int, ...]


class Pricer:
    """Prices beginnings of plans and whole ones of a job; whatever it has computed it keeps."""

    def __init__(self, job: Job) -> None:
        """Price the plans of this job."""
        self.job = job
        self._kept: dict[Hashable, Any] = {}

    def keep(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what was made for a key, or make it."""
        if key not in self._kept:
            self._kept[key] = make()
        found: T = self._kept[key]
        return found

    def loads(self, dp: int, batch: Batch) -> StepLoads:
        """Return a step's microbatches; their order is another matter."""
        key = batch._replace(ordering="given")
        return self.keep(("loads", dp, key), lambda: self.job.loads(dp, key))

    def chain(self, part: str, layout: ParallelLayout, amounts: Amounts) -> tuple[LayerCost, ...]:
        """Return the layers of a part of the model for a microbatch."""
        deep, spread = min(2, layout.pp * layout.vpp), layout.spread_vocabulary
        like = ParallelLayout(tp=layout.tp, cp=self.job.cp, pp=deep, spread_vocabulary=spread)
        key = (part, like, tuple(amounts.values()))
        model = self.job.parts[part]
        return self.keep(key, lambda: layer_costs(model, self.job.device, like, amounts))

    def table(self, part: str, layout: ParallelLayout, batch: Batch, dp: int) -> Table:
        """Return the layers' times for the microbatches of the heaviest of dp replicas."""
        deep, spread = min(2, layout.pp * layout.vpp), layout.spread_vocabulary

        def made() -> Table:
            fixed, rates = self.keep(
                ("rates", part, layout.tp, deep, spread), lambda: self._rates(part, layout)
            )
            loads = self.loads(dp, batch).microbatches
            amounts = np.array([[load[name] for name in self.job.amounts] for load in loads])
            rows = np.rint(fixed[:, :, None] + rates @ amounts.T).astype(np.int64)
            return Table(*rows)

        key = ("table", part, layout.tp, deep, spread, dp, batch.microbatches, batch.grouping)
        return self.keep(key, made)

    def _rates(self, part: str, layout: ParallelLayout) -> tuple[Floats, Floats]:
        """Return what a layer's costs are made of: (costs, layers) and, by resource, one more.

        They are linear in a microbatch's amounts, but for their rounding.
        """
        names = tuple(self.job.amounts)
        costs = ("forward_ns", "backward_ns", "weight_ns", "recompute_ns", "output_bytes")

        def of(amounts: Amounts) -> Floats:
            chain = self.chain(part, layout, amounts)
            return np.array([[getattr(one, cost) for one in chain] for cost in costs], np.float64)

        fixed = of(dict.fromkeys(names, 0))
        each = [(of(dict.fromkeys(names, 0) | {name: _MANY}) - fixed) / _MANY for name in names]
        return fixed, np.stack(each, axis=2)

    # Bounds ------------------------------------------------------------------------------------

    def bound(self, chosen: tuple[Any, ...]) -> int | None:
        """Return a bound of the steps of all plans that begin so; None where none fits."""
        match chosen:
            case (placement, sizes):
                return self._bound_of_sizes(placement, sizes)
            case (placement, sizes, one, batch):
                return self._bound_of_batch(placement, sizes, one, batch)
            case (place, sizes, one, batch, stages):
                nothing = ((),) * len(stages)
                plan = JobPlan(place, sizes, one, batch, stages, nothing)
                return self.bound_of_stages(plan)
            case (placement, _, _, _, _, _):
                plan = JobPlan(*chosen)
                least = self.bound_of_stages(plan)
                # Encoders in its bubbles make no step shorter, and take long to place.
                alone = self.priced(plan, copies=False).step_ns if placement == "bubbles" else 0
                return max(least, alone)
        return 0

    def _bound_of_sizes(self, placement: str, sizes: Sizes) -> int | None:
        """Return the work of the mean replica, spread over its ranks."""
        unit, limit = sizes.pipeline, self.job.memory_bytes
        work, states, tail = self._whole(self.job.pipeline(placement), unit)
        least = 0
        if states // unit.pp > limit:
            return None
        if placement == "bubbles":
            own, held, _ = self._whole(ENCODER, replace(unit, dp=unit.dp * unit.pp))
            if held > limit:
                return None
            work += own
        elif sizes.encoder is not None:
            own, held, _ = self._whole(ENCODER, sizes.encoder)
            least = own // (sizes.encoder.dp * sizes.encoder.pp)
            if held // sizes.encoder.pp > limit:
                return None
        return max(work // (unit.dp * unit.pp) + tail // unit.pp, least)

    def _whole(self, part: str, unit: Unit) -> tuple[int, int, int]:
        """Return the least of a part: ns for all samples, bytes of states, ns of the step's end."""

        def whole() -> tuple[int, int, int]:
            layout = ParallelLayout(tp=unit.tp, dp=unit.dp, cp=self.job.cp)
            chain = self.chain(part, layout, self.job.amounts)
            layout = replace(layout, stages=(len(chain),))
            end = time_of(chain, self.job.device, layout)
            # Of each microbatch a layer's time is rounded down.
            rounding = 4 * len(chain) * self.job.batch
            work = sum(one.forward_ns + one.backward_ns for one in chain) - rounding
            states = memory_of(chain, layout)[0].states
            return max(0, work), states, end.reduce_ns[0] + end.optimizer_ns[0]

        return self.keep((part, unit.tp, unit.dp), whole)

    def _bound_of_batch(self, placement: str, sizes: Sizes, chosen: Schedule, batch: Batch) -> int:
        """Return a bound for any stages: work of the heaviest replica, and a microbatch's way.

        The last stage, with the share y of all work, starts when a microbatch has come through all
        others, and ends before one goes back through them; these have the rest of the work. The
        least of the larger of both is where they are equal.
        """
        unit, part = sizes.pipeline, self.job.pipeline(placement)
        table = self.table(part, self._plain(unit, chosen), batch, unit.dp)
        # Senders wait for each message: of each microbatch there and back, over every border.
        least_sent = int(table.handed.max(axis=1).min())
        hops = 2 * (unit.pp - 1) * chosen.chunks * self.job.device.send_ns(least_sent)
        each, pp = table.work + hops, unit.pp
        work, way = int(each.sum()) - hops, int(each.min())
        copies = self._copies_ns(unit, batch) if placement == "bubbles" else 0
        least = max((work + copies) // pp, way)
        ended = (work + copies + self._whole(part, unit)[2]) // pp
        if pp > 1 and not (chosen.is_split or chosen.chunks > 1):
            share = max(0.0, (work - (pp - 1) * way) / (work + (pp - 1) * (work - way) + 1))
            least = max(least, int((way + share * (work - way)) * 0.999999))
        if sizes.encoder is None:
            return max(least, ended)
        own = sizes.encoder
        layout = ParallelLayout(tp=own.tp, pp=own.pp, dp=own.dp, cp=self.job.cp)
        front = self.table(ENCODER, layout, batch, unit.dp)
        there, both = (
            rows.sum(axis=0) * unit.dp // own.dp
            for rows in (front.forward, front.forward + front.backward)
        )
        # Each microbatch comes through the encoder first, and goes back through it last.
        return max(least + int(both.min()), ended + int(there.min()), int(both.sum()) // own.pp)

    def _plain(self, unit: Unit, chosen: Schedule) -> ParallelLayout:
        """Return a layout that layers cost the same in as in all others of these sizes."""
        return ParallelLayout(
            tp=unit.tp, pp=unit.pp, dp=unit.dp, cp=self.job.cp, spread_vocabulary=chosen.spread
        )

    def _copies_ns(self, unit: Unit, batch: Batch) -> int:
        """Return what the encoder takes of a replica's microbatches, on one rank alone."""
        layout = ParallelLayout(tp=unit.tp, dp=unit.dp, cp=self.job.cp)
        return int(self.table(ENCODER, layout, batch, unit.dp).work.sum())

    def bound_of_stages(self, plan: JobPlan) -> int:
        """Return the most that a rank works, with the way to it and back."""
        times, where, ends = self._joined(plan)
        ranks, split = max(where) + 1, plan.schedule.is_split
        lags = self._lags(times, where)
        ahead = np.array([lags[a, b] for a, b in pairwise(where)] + [0])
        behind = np.concatenate(([0], ahead[:-1]))
        first = times.forward.min(axis=1) + ahead
        back = (times.backward - times.weight if split else times.backward).min(axis=1) + behind
        there = np.concatenate(([0], np.cumsum(first)[:-1]))
        again = np.zeros_like(there) if split else np.concatenate(([0], np.cumsum(back)[:-1]))
        at, count = np.asarray(where), times.forward.shape[1]
        work = np.zeros(ranks, np.int64)
        # Senders wait for their messages, but for the one that a rank sends last.
        np.add.at(work, at, (times.forward + times.backward).sum(axis=1))
        np.add.at(work, at, count * (ahead + behind))
        work -= lags.max(axis=1)
        start = np.array([there[at == rank].min() for rank in range(ranks)])
        rest = np.array([again[at == rank].min() for rank in range(ranks)])
        # After its last pass a rank has its own end of the step before it, others have passes.
        least = int((work + start + np.maximum(np.sum(ends, axis=0), rest)).max())
        least = max(least, int((first + back).sum() - ahead.max(initial=0)))
        if plan.placement == "bubbles":
            copies = self._copies_ns(plan.unit, plan.batch)
            least = max(least, (int(work.sum()) + copies) // ranks)
        return least

    # Whole plans -------------------------------------------------------------------------------

    def evaluate(self, chosen: tuple[Any, ...]) -> int | None:
        """Return a plan's step; None if it needs more memory than there is."""
        plan = JobPlan(*chosen)
        if max(self.memory(plan)) > self.job.memory_bytes:
            return None
        found = self.priced(plan)
        if plan.placement == "bubbles" and max(self.memory(plan, found)) > self.job.memory_bytes:
            return None
        return found.step_ns

    def memory(self, plan: JobPlan, found: Priced | None = None) -> tuple[int, ...]:
        """Return the bytes of each rank's fullest GPU, the encoder's unit first.

        `found`: the plan's step, from which it is read how many microbatches copies of an encoder
        hold; without it two are counted.
        """
        own, front = self.keep((plan, "memory"), lambda: self._memory(plan))
        if plan.placement == "bubbles":
            own = tuple(a + b for a, b in zip(own, self._copies_bytes(plan, found), strict=True))
        return front + own

    def _memory(self, plan: JobPlan) -> tuple[tuple[int, ...], tuple[int, ...]]:
        most, layout = self.loads(plan.unit.dp, plan.batch).most, plan.layout(self.job.cp)
        part = self.job.pipeline(plan.placement)
        if plan.schedule.spread:
            found = memory(self.job.parts[part], self.job.device, layout, most)
        else:
            found = memory_of(self.chain(part, layout, most), layout)
        return tuple(one.total for one in found), tuple(self._unit_bytes(plan))

    def _copies_bytes(self, plan: JobPlan, found: Priced | None) -> list[int]:
        """Return the bytes of each rank's copy of the encoder; all ranks share its optimizer."""
        unit, count = plan.unit, self.job.encoder_layers
        most = self.loads(unit.dp, plan.batch).most
        layout = ParallelLayout(tp=unit.tp, dp=unit.dp * unit.pp, cp=self.job.cp, stages=(count,))
        one = memory_of(self.chain(ENCODER, layout, most), layout)[0]
        held = [min(2, -(-plan.batch.microbatches // unit.pp))] * unit.pp
        if found is not None:
            held = [_most_held(row) for row in found.program.ranks]
        return [one.total + (peak - 1) * one.activations for peak in held]

    def _unit_bytes(self, plan: JobPlan) -> list[int]:
        """Return the bytes of an encoder's unit, [] without one.

        In 1F1B it holds microbatches for the stages behind it, those of the pipeline included.
        """
        own, most = plan.sizes.encoder, self.loads(plan.unit.dp, plan.batch).most
        if own is None:
            return []
        layout = self._unit_layout(plan, own)
        behind = taken_in(Unit(pp=plan.unit.pp, vpp=plan.schedule.chunks), 0)
        found = []
        for rank, one in enumerate(memory_of(self.chain(ENCODER, layout, most), layout)):
            held = min(plan.batch.microbatches, own.pp - rank)
            kept = one.activations // held
            live = min(plan.batch.microbatches, own.pp - rank + behind)
            found.append(one.total - one.activations + -(-live * kept * plan.unit.dp // own.dp))
        return found

    def _unit_layout(self, plan: JobPlan, own: Unit) -> ParallelLayout:
        stages = even_stages(self.job.encoder_layers, own.pp)
        count = plan.batch.microbatches
        return ParallelLayout(
            tp=own.tp, pp=own.pp, dp=own.dp, cp=self.job.cp, stages=stages, microbatches=count
        )

    def priced(self, plan: JobPlan, *, copies: bool = True) -> Priced:
        """Return a plan's step, simulated; without `copies` of encoders none are in its bubbles."""
        copies = copies and plan.placement == "bubbles"
        return self.keep((plan, copies), lambda: self._simulated(plan, copies))

    def extra_ns(self, plan: JobPlan) -> tuple[list[int], list[int]]:
        """Return the ns of each of the pipeline's ranks for recomputation, and TP's collectives."""
        times, where = self._times(plan), plan.layout().placement
        free = replace(self.job.device, link_bytes_per_s=2**60, link_latency_ns=0)
        layout = plan.layout(self.job.cp)
        model = self.job.parts[self.job.pipeline(plan.placement)]
        like = replace(layout, stages=(), recompute="none")
        most = self.loads(plan.unit.dp, plan.batch).most
        a, b = (layer_costs(model, each, like, most) for each in (self.job.device, free))
        both = [sum(one.forward_ns + one.backward_ns for one in chain) for chain in (a, b)]
        share = 1 - both[1] / max(1, both[0])
        again, work = [0] * plan.unit.pp, [0] * plan.unit.pp
        for stage, rank in enumerate(where):
            again[rank] += int(times.again[stage].sum())
            work[rank] += int((times.forward[stage] + times.backward[stage]).sum())
        return again, [int(share * (one - two)) for one, two in zip(work, again, strict=True)]

    def _times(self, plan: JobPlan) -> Table:
        """Return the same of stages in place of layers, recomputation in their backwards."""
        layout = plan.layout(self.job.cp)
        table = self.table(self.job.pipeline(plan.placement), layout, plan.batch, plan.unit.dp)
        return _by_stage(table, plan.stages, plan.recompute)

    def _step_end(self, plan: JobPlan) -> StepEnd:
        """Return the ns of each of the pipeline's ranks for gradients, and for the optimizer."""
        layout = replace(plan.layout(self.job.cp), recompute="none")

        def found() -> StepEnd:
            most, part = self.loads(plan.unit.dp, plan.batch).most, plan.placement
            chain = self.chain(self.job.pipeline(part), layout, most)
            ends = time_of(chain, self.job.device, layout)
            return ends.reduce_ns, ends.optimizer_ns

        return self.keep(("end", plan.placement, layout), found)

    def _joined(self, plan: JobPlan) -> tuple[Table, tuple[int, ...], StepEnd]:
        """Return times by stage, the rank of each, and the step's end, an encoder's unit first."""
        times, own = self._times(plan), plan.sizes.encoder
        where, ends = plan.layout().placement, self._step_end(plan)
        if own is None:
            return times, where, ends
        front = self._unit_layout(plan, own)
        table = self.table(ENCODER, front, plan.batch, plan.unit.dp)
        # A replica of the encoder does what several of the pipeline need, or a part of one's.
        rows = _by_stage(table, front.stages, ())
        rows = Table(*(-(-row * plan.unit.dp // own.dp) for row in rows))
        most = self.loads(plan.unit.dp, plan.batch).most
        first = time_of(self.chain(ENCODER, front, most), self.job.device, front)
        return (
            Table(*(np.concatenate(pair) for pair in zip(rows, times, strict=True))),
            (*range(own.pp), *(rank + own.pp for rank in where)),
            (first.reduce_ns + ends[0], first.optimizer_ns + ends[1]),
        )

    def _simulated(self, plan: JobPlan, copies: bool) -> Priced:
        times, where, (reduce, optimizer) = self._joined(plan)
        if plan.batch.ordering != "given" and self.job.arrange is not None:
            pair = times.forward, times.backward
            order = np.asarray(self.job.arrange(plan.batch.ordering, len(reduce), *pair))
            times = Table(*(row[:, order] for row in times))
        costs = self._costs(plan, times, where, copies)
        program, graph = self._program(plan, costs, copies)
        found = node_times(graph, costs)
        last = np.zeros(len(reduce), np.int64)
        np.maximum.at(last, graph.rank, found.end[: graph.passes])
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

    def stage_rates(
        self, plan: JobPlan
    ) -> tuple[dict[str, tuple[Floats, Floats]], Sequence[int], Priced]:
        """Return fixed ns and ns by resource of each kind's stages, their ranks, and the step.

        Passes of ranks (S, T, and pieces of encoders) are not linear in this sense: their means are
        what is fixed.
        """
        layout, own = plan.layout(self.job.cp), plan.sizes.encoder
        parts = [(self.job.pipeline(plan.placement), layout, plan.stages, plan.recompute, 1.0)]
        if own is not None:
            front, share = self._unit_layout(plan, own), plan.unit.dp / own.dp
            parts.insert(0, (ENCODER, front, front.stages, (), share))
        rows: list[tuple[Any, Any]] = []
        for part, like, stages, policy, share in parts:
            fixed, rates = self._rates(part, like)
            every = np.concatenate((fixed[:, :, None], rates), axis=2) * share
            summed = _by_stage(Table(*every), stages, policy)
            rows.append((np.asarray(summed.forward), np.asarray(summed.backward)))
        found = {kind: np.concatenate([pair[at] for pair in rows]) for at, kind in enumerate("FB")}
        priced = self.priced(plan)
        if plan.schedule.is_split:
            fixed, rates = self._rates(parts[-1][0], layout)
            every = np.concatenate((fixed[:, :, None], rates), axis=2)
            found["W"] = _by_stage(Table(*every), plan.stages, ()).weight
            found["I"] = found["B"] - found["W"]
        tables = {k: t for k, t in priced.costs.pass_ns.items() if k[0] in "STE"}
        for kind, table in tables.items():
            mean = np.asarray(table, np.float64).mean(axis=1, keepdims=True)
            found[kind] = np.concatenate(
                (mean, np.zeros((len(mean), len(self.job.amounts)))), axis=1
            )
        split = {kind: (row[:, 0], row[:, 1:]) for kind, row in found.items()}
        return split, self._joined(plan)[1], priced

    def _costs(self, plan: JobPlan, times: Table, where: Sequence[int], copies: bool) -> Costs:
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

    def _lags(self, times: Table, where: Sequence[int]) -> Ints:
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
            one = output_layer(model, self.job.device, layout, load)
            early = one.backward_ns - one.weight_ns if plan.schedule.name.endswith("alg2") else 0
            rows[0].append(one.forward_ns + early)
            rows[1].append(one.backward_ns - early)
        return {kind: [row] * plan.unit.pp for kind, row in zip("ST", rows, strict=True)}

    def _copied(self, plan: JobPlan) -> dict[str, list[list[int]]]:
        """Return the times of an encoder's pieces on each rank, by microbatch."""
        layout = ParallelLayout(tp=plan.unit.tp, dp=plan.unit.dp, cp=self.job.cp)
        table = self.table(ENCODER, layout, plan.batch, plan.unit.dp)
        count = self.job.encoder_layers
        rows = _by_stage(table, even_stages(count, min(PIECES, count)), ())
        return {
            layer_kind(name, piece): [row.tolist()] * plan.unit.pp
            for name, times in (("EF", rows.forward), ("EB", rows.backward))
            for piece, row in enumerate(times)
        }

    def _program(self, plan: JobPlan, costs: Costs, copies: bool) -> tuple[Program, Graph]:
        """Return a plan's program and graph; programs without copies depend on sizes alone."""
        count, pp, own = plan.batch.microbatches, plan.unit.pp, plan.sizes.encoder
        if copies:
            plain = schedule_of(plan.schedule, pp, count)
            filled = with_encoders(plain, costs, [_times_of(costs)])
            return filled, make_graph(filled)

        def made() -> tuple[Program, Graph]:
            program = program_of(plan.schedule, pp, count, own)
            return program, make_graph(program)

        return self.keep((plan.schedule, pp, own and own.pp, count), made)


def schedule_of(chosen: Schedule, ranks: int, microbatches: int) -> Program:
    """Return the program of a schedule."""
    options = {"chunks": chosen.chunks} if chosen.name.startswith("interleaved") else {}
    return schedule(chosen.name, ranks=ranks, microbatches=microbatches, **options)


def program_of(chosen: Schedule, pp: int, microbatches: int, encoder: Unit | None) -> Program:
    """Return the program of a step, with an encoder's unit in front if there is one."""
    if encoder is None:
        return schedule_of(chosen, pp, microbatches)
    return units_program((Unit(pp=encoder.pp), Unit(pp=pp, vpp=chosen.chunks)), microbatches)


def even_stages(layers: int, stages: int) -> tuple[int, ...]:
    """Return equal numbers of layers, one more for the first stages.

    >>> even_stages(7, 3)
    (3, 2, 2)
    """
    size, rest = divmod(layers, stages)
    return (size + 1,) * rest + (size,) * (stages - rest)


def _most_held(row: Sequence[Pass]) -> int:
    """Return the most microbatches that a rank's copy of an encoder holds at a time."""
    held = peak = 0
    for what in row:
        # From its first piece's forward to that piece's backward.
        held += (what.kind == layer_kind("EF", 0)) - (what.kind == layer_kind("EB", 0))
        peak = max(peak, held)
    return max(1, peak)


def _by_stage(table: Table, stages: Sequence[int], recompute: Sequence[Sequence[int]]) -> Table:
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
    return Table(forward, backward + again, weight, again, handed)


def _times_of(costs: Costs) -> EncoderTimes:
    """Return an encoder's mean times by piece, and each microbatch's share of them."""
    tables: dict[str, Any] = dict(costs.pass_ns)
    forward, backward = (
        [tables[kind][0] for kind in sorted(tables) if kind.startswith(name)]
        for name in ("EF", "EB")
    )
    mean = [max(1, sum(row) // len(row)) for row in forward]
    back = [sum(row) // len(row) for row in backward]
    shares = tuple(max(1, 1000 * each // mean[0]) for each in forward[0])
    return EncoderTimes(tuple(mean), tuple(back) if any(back) else (), shares)
