"""Prices of beginnings of plans: bounds from work alone; and of whole ones, by the simulator.

A rank works as long as its passes take, and starts and ends when a first microbatch has come to it
and a last one has gone back. Bounds hold for any order of passes, so no plan is passed over that
could be the best. They are made of the numbers that are simulated (steps.py).
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from ...shapes import ParallelLayout, chain_memory, step_end
from ..orchestration.units import Unit
from .plan import ENCODER, EXACT_GPUS, BatchChoice, JobPlan, ScheduleChoice, Sizes
from .steps import Simulated


class Pricer(Simulated):
    """Prices beginnings of plans and whole ones of a job."""

    def bound(self, chosen: tuple[Any, ...]) -> int | None:
        """Return a bound of the steps of all plans that begin so; None where none fits."""
        match chosen:
            case (placement, sizes):
                return self._bound_of_sizes(placement, sizes)
            case (placement, sizes, one, batch):
                return self._bound_of_batch(placement, sizes, one, batch)
            case (_, _, _, _, stages):
                return self.bound_of_stages(JobPlan(*(*chosen, ((),) * len(stages))))
            case (placement, _, _, _, _, _):
                plan = JobPlan(*chosen)
                least = self.bound_of_stages(plan)
                # Encoders in its bubbles make no step shorter, and take long to place.
                alone = self.priced(plan, copies=False).step_ns if placement == "bubbles" else 0
                return max(least, alone)
        return 0

    def _bound_of_sizes(self, placement: str, sizes: Sizes) -> int | None:
        """Return the work of the heaviest replica, spread over its ranks."""
        unit, limit, part = sizes.pipeline, self.job.memory_bytes, self.job.pipeline(placement)
        _, states, tail = self._whole(part, unit)
        least, work = 0, self._heaviest(part, unit, placement, sizes)
        if states // unit.pp > limit:
            return None
        if placement == "bubbles":
            if self._whole(ENCODER, replace(unit, dp=unit.dp * unit.pp))[1] > limit:
                return None
            work += self._heaviest(ENCODER, unit, placement, sizes)
        elif (encoder := sizes.encoder) is not None:
            alone = self._heaviest(ENCODER, replace(encoder, dp=unit.dp), placement, sizes)
            least = alone * unit.dp // (encoder.dp * encoder.pp)
            if self._whole(ENCODER, encoder)[1] // encoder.pp > limit:
                return None
        return max((work + tail) // unit.pp, least)

    def _heaviest(self, part: str, unit: Unit, placement: str, sizes: Sizes) -> int:
        """Return the least work of the replica that is simulated, for any number of microbatches.

        Where the search goes to its end it is that of each number; else it is the mean replica's,
        which costs no planning, and is above it only where weights of samples mislead.
        """
        if self.job.gpus > EXACT_GPUS:
            return self._whole(part, unit)[0] // unit.dp
        # Without an output layer, which is divided over the ranks in some schedules.
        spread = any(choice.spread for choice in self.job.schedules)
        batches = self.job.choose_batch((placement, sizes, ScheduleChoice("1f1b")))
        tables = (self.table(part, unit, batch, unit.dp, spread) for batch in batches)
        return min(int(table.work.sum()) for table in tables)

    def _whole(self, part: str, unit: Unit) -> tuple[int, int, int]:
        """Return the least of a part: ns for all samples, bytes of states, ns of the step's end."""

        def whole() -> tuple[int, int, int]:
            layout = ParallelLayout(tp=unit.tp, dp=unit.dp, cp=self.job.cp)
            chain = self.chain(part, Unit(unit.tp), self.job.amounts)
            layout = replace(layout, stages=(len(chain),))
            end = step_end(chain, self.job.device, layout)
            # Of each microbatch a layer's time is rounded down.
            rounding = 4 * len(chain) * self.job.batch
            work = sum(layer.forward_ns + layer.backward_ns for layer in chain) - rounding
            states = chain_memory(chain, layout)[0].states
            return max(0, work), states, end.reduce_ns[0] + end.optimizer_ns[0]

        return self.keep((part, unit.tp, unit.dp), whole)

    def _bound_of_batch(
        self, placement: str, sizes: Sizes, chosen: ScheduleChoice, batch: BatchChoice
    ) -> int:
        """Return a bound for any stages: work of the heaviest replica, and a microbatch's way.

        The last stage, with the share y of all work, starts when a microbatch has come through all
        others, and ends before one goes back through them; these have the rest of the work. The
        least of the larger of both is where they are equal.
        """
        unit, part = sizes.pipeline, self.job.pipeline(placement)
        table = self.table(part, unit, batch, unit.dp, chosen.spread)
        # Senders wait for each message: of each microbatch there and back, over every border.
        least_sent = int(table.handed.max(axis=1).min())
        hops = 2 * (unit.pp - 1) * chosen.chunks * self.job.device.send_ns(least_sent)
        microbatch_ns, pp = table.work + hops, unit.pp
        work, way = int(microbatch_ns.sum()) - hops, int(microbatch_ns.min())
        copies = self._copies_ns(unit, batch) if placement == "bubbles" else 0
        least = max((work + copies) // pp, way)
        ended = (work + copies + self._whole(part, unit)[2]) // pp
        if pp > 1 and not (chosen.is_split or chosen.chunks > 1):
            share = max(0.0, (work - (pp - 1) * way) / (work + (pp - 1) * (work - way) + 1))
            least = max(least, int((way + share * (work - way)) * 0.999999))
        if sizes.encoder is None:
            return max(least, ended)
        encoder = sizes.encoder
        front = self.table(ENCODER, encoder, batch, unit.dp)
        there, both = (
            rows.sum(axis=0) * unit.dp // encoder.dp
            for rows in (front.forward, front.forward + front.backward)
        )
        # Each microbatch comes through the encoder first, and goes back through it last.
        return max(least + int(both.min()), ended + int(there.min()), int(both.sum()) // encoder.pp)

    def _copies_ns(self, unit: Unit, batch: BatchChoice) -> int:
        """Return what the encoder takes of a replica's microbatches, on one rank alone."""
        return int(self.table(ENCODER, unit, batch, unit.dp).work.sum())

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
        way_back = np.array([again[at == rank].min() for rank in range(ranks)])
        # After its last pass a rank has its own end of the step before it, others have passes.
        least = int((work + start + np.maximum(np.sum(ends, axis=0), way_back)).max())
        least = max(least, int((first + back).sum() - ahead.max(initial=0)))
        if plan.placement == "bubbles":
            copies = self._copies_ns(plan.unit, plan.batch)
            least = max(least, (int(work.sum()) + copies) // ranks)
        return least

    def evaluate(self, chosen: tuple[Any, ...]) -> int | None:
        """Return a plan's step; None if it needs more memory than there is."""
        plan = JobPlan(*chosen)
        if max(self.memory(plan)) > self.job.memory_bytes:
            return None
        priced = self.priced(plan)
        if plan.placement == "bubbles" and max(self.memory(plan, priced)) > self.job.memory_bytes:
            return None
        return priced.step_ns
