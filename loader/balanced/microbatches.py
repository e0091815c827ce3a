"""The core of a balanced loader: an epoch's microbatches in order, and its position.

Everything that a trainer can see follows from (data, seed, epoch, plan); processes, sockets and
timing are behind a connection, which is opened at first use.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import msgpack

from ...balancer.planning.problem.config import PlanConfig
from ...balancer.protocol.job_spec import JobSpec
from ...balancer.protocol.messages import Batch, EpochPosition, Ready
from ...balancer.protocol.rank_session import Arrival
from ...workers.codec.frames import decode
from ...workers.sources.dead_letter import DeadLetter, record_letter
from ..collate.payloads import payload_buffer
from ..resume.balanced_position import START, ResumePosition, read_position, write_position
from ..step.errors import LoaderError
from ..step.info import Step, StepInfo
from .over_budget import OverBudget

logger = logging.getLogger(__name__)

Collate = Callable[[list[Any]], Any]


class MicrobatchSource(Protocol):
    """The interface of Connection and InProcessConnection."""

    @property
    def left_out(self) -> int:
        """How many samples of the run that has ended were in no step."""

    def wait_ready(self) -> Ready:
        """Wait until the job runs."""

    def begin(
        self, epoch: int, at: EpochPosition, holes: tuple[int, ...] = (), served: int = 0
    ) -> None:
        """Start the next run, and its workers; `holes` and `served` as in RankSession.begin."""

    def finish(self) -> None:
        """End the run's workers: its iterator is at its end, or was dropped."""

    def next(self, timeout_s: float | None = None) -> Arrival | None:
        """Return the next microbatch, None at the end of the run."""

    def close(self) -> None:
        """Tell the balancer that this rank leaves."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """A collated microbatch and its StepInfo."""

    batch: Any
    info: StepInfo


@dataclass(slots=True)
class BalancedLoader:
    """Microbatches of one process' ranks; not safe to share between threads.

    `connect` makes the connection, `collate` a batch of samples; `timeout_s` bounds a wait for the
    next microbatch; holes are written to `dead_letter`, and more than `max_errors` of them in an
    epoch (a count, or a float: a part of its samples) are an error; `local` says that the samples
    come from processes of this machine, and may be any Python objects.
    """

    job: JobSpec
    ranks: tuple[int, ...]
    connect: Callable[[], MicrobatchSource]
    collate: Collate
    timeout_s: float | None = None
    dead_letter: str | None = None
    max_errors: float | None = None
    name: str = ""
    local: bool = True
    epoch: int = 0
    left_out: int = 0
    _at: ResumePosition = START
    _resume: ResumePosition | None = None
    _generation: int = 0
    _running: int = 0
    _told: int | None = None
    _connection: MicrobatchSource | None = field(default=None, repr=False)
    _over_budget: OverBudget = field(init=False, repr=False)

    def __post_init__(self) -> None:
        limits = zip(self.plan.resources, self.plan.budgets, strict=True)
        self._over_budget = OverBudget({name: most for name, most in limits if most is not None})

    @property
    def plan(self) -> PlanConfig:
        """The configuration of the plan, for all ranks."""
        return self.job.plan

    def open(self) -> MicrobatchSource:
        """Return the connection; connect at the first call."""
        if self._connection is None:
            self._connection = self.connect()
        return self._connection

    def close(self) -> None:
        """End the connection, and with it the processes that were started for it."""
        self._generation += 1
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    def count(self) -> int:
        """Return the number of samples; connects if need be. ValueError for fewer than ranks."""
        count = self.open().wait_ready().count
        if count < self.plan.ranks:
            raise ValueError(
                f"{count} samples cannot feed {self.plan.ranks} ranks: use fewer ranks"
            )
        return count

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration runs; a position within another is dropped."""
        if epoch != self.epoch:
            self.epoch, self._at, self._resume = epoch, START, None
            self._generation += 1

    def microbatches(self) -> "Microbatches":
        """Return an iterator over the epoch's microbatches, from the loaded position if any.

        The workers are started here, as torch's are when iter() is called. At its end the epoch is
        over and the next one's number is set. An iterator that was left behind, by another one or
        by load_state_dict, raises RuntimeError.
        """
        self._generation += 1
        self._at, self._resume = self._resume or START, None
        self.left_out = len(self._at.holes)
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        self._running = self._generation
        return Microbatches(self, self._generation)

    def steps(self) -> Iterator[Step]:
        """Return an iterator over whole steps: the microbatches of this process' ranks.

        Where the position is inside a step, the first has what is left of it.
        """
        return self._collect(self.microbatches())

    def state_dict(self) -> dict[str, Any]:
        """Return the ledger of what has been handed out; see loader/resume/ledger.py."""
        return write_position(self.job, self.epoch, self._resume or self._at)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a ledger; ValueError if this loader cannot. Running iterators end."""
        epoch, position = read_position(state, self.job, len(self.ranks))
        self._generation += 1
        self.epoch, self._resume = epoch, position

    def _collect(self, microbatches: "Microbatches") -> Iterator[Step]:
        while True:
            before, delivered = self._at, list[Delivered]()
            try:
                for each in microbatches:
                    delivered.append(each)
                    if each.info.last and each.info.rank == self.ranks[-1]:
                        break
            except BaseException:
                self._at = before
                raise
            if not delivered:
                return
            batches = tuple(one.batch for one in delivered)
            yield Step(delivered[0].info.step, batches, tuple(one.info for one in delivered))

    def _start(self) -> None:
        """Begin the run at the loader's position; nothing that was handed out is decoded again."""
        here = self._at
        holes = tuple(ordinal for ordinal in here.holes if ordinal >= here.place.start)
        self.open().begin(self.epoch, here.place, holes, here.served)

    def _tell_what_will_be_left_out(self, count: int) -> None:
        """Log once how many samples at an epoch's end make no step, where that is known before."""
        plan, rest = self.plan, count % self.plan.samples_per_step
        if self._told is not None:
            return
        is_left = plan.mode == "exact" and not plan.drop_last and not plan.keeps_last(rest)
        self._told = rest if is_left else 0
        if self._told and 0 in self.ranks:
            logger.warning(
                "the last %d of %d samples are left out of every epoch: they are fewer than the %d "
                "microbatches of a step, and collate_fn cannot make a batch of no samples",
                rest, count, plan.least_microbatches,
            )  # fmt: skip

    def _tell_what_was_left_out(self, count: int) -> None:
        """Log how many samples of the epoch were in no step, if that is more than was told."""
        if count > (self._told or 0) and 0 in self.ranks:
            logger.warning(
                "%d samples were left out of epoch %d: there were fewer than microbatches, and "
                "collate_fn cannot make a batch of no samples", count, self.epoch,
            )  # fmt: skip

    def _take(self, begun: bool) -> Delivered | None:
        """Return the next microbatch, None at the end; after an error all processes are ended."""
        while True:
            try:
                if not begun:
                    self._tell_what_will_be_left_out(self.count())
                arrival = self.open().next(self.timeout_s)
            except LoaderError:
                self.close()
                raise
            if arrival is None:
                self._tell_what_was_left_out(self.open().left_out)
                self._over_budget.end_epoch()
                self.finish(self._generation)
                self.epoch, self._at = self.epoch + 1, START
                return None
            self._report_holes(arrival.batch)
            is_passed_over = self._is_passed_over(arrival.batch)
            delivered = None if is_passed_over else self._delivered(arrival)
            holes = self._holes(arrival.batch)
            self._check_errors(holes, arrival.batch)
            self._advance(arrival.batch, holes)
            self.left_out = len(holes)
            if delivered is not None:
                info = delivered.info
                self._over_budget.take(info.over_budget, info.costs, info.keys)
                return delivered
            begun = True

    def _is_passed_over(self, batch: Batch) -> bool:
        """Return whether nothing of a step can be handed out, on any rank; log it once a step."""
        if self.plan.empty_microbatches or batch.weights.step_samples:
            return False
        if batch.rank == 0 and batch.microbatch == 0:
            logger.warning(
                "step %d of epoch %d is left out: of its %d samples fewer can be used than it has "
                "microbatches, and collate_fn cannot make a batch of no samples",
                batch.step, self.epoch, len(batch.step_holes),
            )  # fmt: skip
        return True

    def finish(self, generation: int) -> None:
        """End the workers of an iterator that is over, unless a later one has its own already."""
        if self._running == generation and self._connection is not None:
            self._running = 0
            self._connection.finish()

    def _check_current(self, generation: int) -> None:
        if generation != self._generation:
            raise RuntimeError(
                "this iterator is over: a new one was started, the epoch or the position was set, "
                "or the loader was closed; call iter() again"
            )

    def _holes(self, batch: Batch) -> tuple[int, ...]:
        """Return the epoch's holes, those of this step included."""
        holes = self._at.holes
        return holes + tuple(ordinal for ordinal in batch.step_holes if ordinal not in holes)

    def _check_errors(self, holes: tuple[int, ...], batch: Batch) -> None:
        """Raise LoaderError, on all ranks at the same step, when too many samples are lost."""
        if self.max_errors is None or len(holes) == len(self._at.holes):
            return
        allowed = self.max_errors
        if isinstance(allowed, float):
            allowed = int(allowed * self.count())
        if len(holes) > allowed:
            self.close()
            where = f", see {self.dead_letter}" if self.dead_letter else ""
            raise LoaderError(
                f"{len(holes)} samples of epoch {self.epoch} could not be used up to step "
                f"{batch.step}, and max_errors={self.max_errors} allows {allowed}{where}: repair "
                "the data, or allow more"
            )

    def _advance(self, batch: Batch, holes: tuple[int, ...]) -> None:
        """Move the position past a microbatch: all ranks of this process must have had theirs."""
        here = self._at.place
        if batch.rank != self.ranks[-1]:
            here = EpochPosition(here.start, here.window_step, batch.step, batch.microbatch)
            self._at = ResumePosition(here, self.ranks.index(batch.rank) + 1, holes)
        elif batch.microbatch + 1 == batch.microbatches:
            self._at = ResumePosition(batch.after, holes=holes)
        else:
            here = EpochPosition(here.start, here.window_step, batch.step, batch.microbatch + 1)
            self._at = ResumePosition(here, holes=holes)

    def _delivered(self, arrival: Arrival) -> Delivered:
        batch = arrival.batch
        samples = [
            decode(msgpack.unpackb(item.header), payload_buffer(payload), self.local)
            for item, payload in zip(batch.items, arrival.payloads, strict=True)
        ]
        return Delivered(self.collate(samples), self._info(batch))

    def _report_holes(self, batch: Batch) -> None:
        if self.dead_letter is not None:
            for hole in batch.holes:
                letter = DeadLetter(hole.key, hole.source or self.name, hole.reason, "data")
                record_letter(self.dead_letter, letter)

    def _info(self, batch: Batch) -> StepInfo:
        costs = dict(zip(self.job.resources, batch.costs, strict=False))
        weights = batch.weights
        return StepInfo(
            epoch=self.epoch,
            step=batch.step,
            microbatch=batch.microbatch,
            microbatches=batch.microbatches,
            rank=batch.rank,
            ranks=self.plan.ranks,
            samples=weights.samples,
            label_tokens=weights.label_tokens,
            rank_samples=weights.rank_samples,
            rank_label_tokens=weights.rank_label_tokens,
            step_samples=weights.step_samples,
            step_label_tokens=weights.step_label_tokens,
            keys=tuple(item.key for item in batch.items),
            holes=tuple(hole.key for hole in batch.holes),
            images=costs.get("tiles", 1) > 0 if batch.items else False,
            costs=MappingProxyType(costs),
            over_budget=self._over_budget.exceeded(costs),
        )


class Microbatches(Iterator[Delivered]):
    """An iterator over an epoch's microbatches; next() may be repeated after a TimeoutError."""

    def __init__(self, loader: BalancedLoader, generation: int) -> None:
        self._loader = loader
        self._generation = generation
        self._begun = False
        self._over = False

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._loader.finish(self._generation)

    def __next__(self) -> Delivered:
        if self._over:
            raise StopIteration
        self._loader._check_current(self._generation)
        delivered = self._loader._take(self._begun)
        self._begun = True
        self._over = delivered is None
        if delivered is None:
            raise StopIteration
        return delivered
