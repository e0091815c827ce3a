"""The core of a balanced loader: an epoch's microbatches in order, and where it stands.

Everything that a trainer can see follows from (data, seed, epoch, plan); processes, sockets and
timing are behind a connection, which is opened at first use.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import msgpack

from ..balancer.job import Job
from ..balancer.messages import Batch, Place, Ready
from ..balancer.plan import PlanConfig
from ..balancer.rank_session import Arrival
from ..workers.codec import decode
from ..workers.dead_letter import DeadLetter, append_letter
from .ledger import read_ledger, write_ledger
from .step_info import Step, StepInfo

START = Place(0, 0, 0, 0)

Collate = Callable[[list[Any]], Any]


class Feeding(Protocol):
    """What brings microbatches: Connection, or InProcess."""

    def wait_ready(self) -> Ready:
        """Wait until the job runs."""

    def begin(self, epoch: int, at: Place) -> None:
        """Start the next run."""

    def next(self, timeout_s: float | None = None) -> Arrival | None:
        """Return the next microbatch, None at the end of the run."""

    def close(self) -> None:
        """Say goodbye."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """A collated microbatch and what there is to say about it."""

    batch: Any
    info: StepInfo


@dataclass(slots=True)
class BalancedLoader:
    """Microbatches of one process' ranks; not safe to share between threads.

    `connect` makes the connection, `collate` a batch of samples; `timeout_s` bounds a wait for the
    next microbatch; holes are written to `dead_letter`; `local` says that the samples come from
    processes of this machine, and may be any Python objects.
    """

    job: Job
    plan: PlanConfig
    ranks: tuple[int, ...]
    connect: Callable[[], Feeding]
    collate: Collate
    timeout_s: float | None = None
    dead_letter: str | None = None
    name: str = ""
    local: bool = True
    epoch: int = 0
    _at: Place = START
    _resume: Place | None = None
    _generation: int = 0
    _connection: Feeding | None = field(default=None, repr=False)

    def open(self) -> Feeding:
        """Connect, once."""
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
        """Return the number of samples; connects if need be."""
        return self.open().wait_ready().count

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration runs; a position within another is dropped."""
        if epoch != self.epoch:
            self.epoch, self._at, self._resume = epoch, START, None
            self._generation += 1

    def microbatches(self) -> Iterator[Delivered]:
        """Return an iterator over the epoch's microbatches, from the loaded position if any.

        At its end the epoch is over and the next one's number is set. An iterator that was left
        behind, by another one or by load_state_dict, raises RuntimeError.
        """
        self._generation += 1
        self._at, self._resume = self._resume or START, None
        return self._iterate(self._generation)

    def steps(self) -> Iterator[Step]:
        """Return an iterator over whole steps: the microbatches of this process' ranks."""
        delivered: list[Delivered] = []
        for each in self.microbatches():
            delivered.append(each)
            if each.info.last and each.info.rank == self.ranks[-1]:
                batches = tuple(one.batch for one in delivered)
                yield Step(each.info.step, batches, tuple(one.info for one in delivered))
                delivered.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the ledger of what has been handed out; see loader/ledger.py."""
        return write_ledger(self.job, self.plan, self.epoch, self._resume or self._at)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a ledger; ValueError if this loader cannot. Running iterators end."""
        ledger = read_ledger(state, self.job, self.plan)
        self._generation += 1
        self.epoch, self._resume = ledger.epoch, ledger.place

    def _iterate(self, generation: int) -> Iterator[Delivered]:
        connection = self.open()
        connection.wait_ready()
        connection.begin(self.epoch, self._at)
        while True:
            self._check_current(generation)
            arrival = connection.next(self.timeout_s)
            if arrival is None:
                break
            delivered = self._delivered(arrival)
            self._advance(arrival.batch)
            yield delivered
        self.epoch, self._at = self.epoch + 1, START

    def _check_current(self, generation: int) -> None:
        if generation != self._generation:
            raise RuntimeError(
                "this iterator is over: a new one was started, the epoch or the position was set, "
                "or the loader was closed; call iter() again"
            )

    def _advance(self, batch: Batch) -> None:
        """Move the position once all ranks of this process have the microbatch."""
        if batch.rank != self.ranks[-1]:
            return
        if batch.microbatch + 1 == batch.microbatches:
            self._at = batch.after
        else:
            start = self._at
            self._at = Place(start.start, start.window_step, batch.step, batch.microbatch + 1)

    def _delivered(self, arrival: Arrival) -> Delivered:
        batch = arrival.batch
        self._report_holes(batch)
        samples = [
            decode(msgpack.unpackb(item.header), payload_buffer(payload), self.local)
            for item, payload in zip(batch.items, arrival.payloads, strict=True)
        ]
        return Delivered(self.collate(samples), self._info(batch))

    def _report_holes(self, batch: Batch) -> None:
        if self.dead_letter is not None:
            for hole in batch.holes:
                letter = DeadLetter(hole.key, self.name, hole.reason, "data")
                append_letter(self.dead_letter, letter)

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
        )


def payload_buffer(payload: Any) -> memoryview:
    """Return the bytes of a payload, whichever way it came."""
    return memoryview(getattr(payload, "buffer", payload)).cast("B")
