"""Results of one lease that travel together.

A microbatch can be used when all its samples are there, and a lease has samples of one, or of
several that take little time: so there is no hurry before its last. But a message costs the
balancer about as much as copying 50 KB, so what travels inline is sent when it is as large as that,
while the next sample is decoded; and a sample that took long is not held back for others, as its
worker may die of them.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from msgspec import structs

from ...balancer.protocol.clock_offset import MICROSECONDS
from ...balancer.protocol.messages import (
    NO_HANDLES,
    DecodeDone,
    Handles,
    Message,
    PayloadHandle,
    ProbeDone,
)
from ...balancer.protocol.parts import DecodedItem, Probed

# Decoded samples are sent together up to this size (of payloads that are in the message), if they
# took no more time together than this, and the last of them no more than that.
MOST_BYTES = 64 << 10
MOST_S = 0.05
QUICK_S = 0.01


@dataclass(slots=True)
class LeaseResults:
    """Results of one lease that are not sent yet."""

    lease: int = 0
    probed: list[Probed] = field(default_factory=list)
    decoded: list[DecodedItem] = field(default_factory=list)
    payloads: list[Any] = field(default_factory=list)
    runs: "Runs" = field(default_factory=lambda: Runs())
    nbytes: int = 0
    decoding_s: float = 0.0
    _probing_s: list[float] = field(default_factory=list)
    _decoding_s: list[float] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.probed or self.decoded)

    @property
    def has_run(self) -> bool:
        """True where a payload that is not sent yet lies in memory that ranks read."""
        return bool(self.runs.runs)

    def add_probed(self, lease: int, result: Probed, took_s: float) -> None:
        """Keep a sample's costs."""
        self.lease = lease
        self.probed.append(result)
        self._probing_s.append(took_s)

    def add_decoded(self, lease: int, item: DecodedItem, payload: Any, took_s: float) -> bool:
        """Keep a decoded sample; return whether all are to be sent now.

        payload: its bytes in one buffer, or their handle. Those of one run follow each other.
        """
        self.lease = lease
        self._decoding_s.append(took_s)
        self.decoding_s += took_s
        self.decoded.append(item)
        if type(payload) is PayloadHandle:
            self.runs.add(payload)
        else:
            self.runs.add_none()
            self.payloads.append(payload)
            self.nbytes += memoryview(payload).nbytes
        return took_s > QUICK_S or self.nbytes > MOST_BYTES or self.decoding_s > MOST_S

    def add_batch(
        self, lease: int, items: Sequence[DecodedItem], payload: PayloadHandle, took_s: float
    ) -> bool:
        """Keep the samples of a microbatch that is laid out, as `add_decoded` does each.

        took_s: for each of them.
        """
        self.lease = lease
        self._decoding_s += [took_s] * len(items)
        self.decoding_s += took_s * len(items)
        self.decoded += items
        self.runs.add(payload, len(items))
        return took_s > QUICK_S or self.decoding_s > MOST_S

    def take(self) -> list[tuple[Message, tuple[Any, ...]]]:
        """Return the messages, with their payloads, that say everything; nothing is kept."""
        found: list[tuple[Message, tuple[Any, ...]]] = []
        if self.probed:
            probing_us = _usual_us(self._probing_s)
            found.append((ProbeDone(self.lease, tuple(self.probed), probing_us), ()))
        if self.decoded:
            handles = self.runs.handles()
            decoding_us = _usual_us(self._decoding_s)
            done = DecodeDone(self.lease, tuple(self.decoded), handles, decoding_us)
            found.append((done, tuple(self.payloads)))
        self.clear()
        return found

    def clear(self) -> None:
        """Forget everything: it belongs to a job that is over."""
        self.probed, self.decoded, self.payloads, self.runs = [], [], [], Runs()
        self.nbytes, self.decoding_s, self._probing_s, self._decoding_s = 0, 0.0, [], []


@dataclass(slots=True)
class Runs:
    """The runs that payloads lie in, and where; see Handles, which is made of it."""

    runs: list[PayloadHandle] = field(default_factory=list)
    run_of: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    end: int = 0

    def add(self, payload: PayloadHandle, parts: int = 1) -> None:
        """Add a payload: to the last run if it has the same serial, else as the first of a run.

        parts: the samples that have it together, each an even part of it.
        """
        runs, offset, nbytes = self.runs, payload.offset, payload.nbytes
        if not runs or runs[-1].serial != payload.serial:
            self._end_run()
            runs.append(payload)
        self.end = offset + nbytes
        begin, last = offset - runs[-1].offset, len(runs) - 1
        if parts == 1:
            self.run_of.append(last)
            self.offsets.append(begin)
            self.lengths.append(nbytes)
            return
        ends = [begin + nbytes * part // parts for part in range(parts + 1)]
        self.run_of += [last] * parts
        self.offsets += ends[:-1]
        self.lengths += [end - start for start, end in pairwise(ends)]

    def add_none(self) -> None:
        """Add an item whose payload travels inline."""
        self.run_of.append(-1)
        self.offsets.append(0)
        self.lengths.append(0)

    def handles(self) -> Handles:
        """Return what is announced."""
        if not self.runs:
            return NO_HANDLES
        self._end_run()
        return Handles(
            tuple(self.runs), tuple(self.run_of), tuple(self.offsets), tuple(self.lengths)
        )

    def _end_run(self) -> None:
        """Give the last run the size of its payloads together."""
        if self.runs:
            first = self.runs[-1]
            self.runs[-1] = structs.replace(first, nbytes=self.end - first.offset)


def _usual_us(took_s: list[float]) -> int:
    """Return how long one sample takes as a rule: not one for which other processes had the core.

    >>> _usual_us([0.001, 0.002, 0.5])
    2000
    """
    return round(MICROSECONDS * statistics.median_low(took_s))
