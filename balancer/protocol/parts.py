"""Defines the records inside messages: samples of leases and batches, holes, epoch positions.

Those that a loop without a balancer uses, too, are here, so that it loads no others.
"""

import operator
from collections.abc import Iterator
from typing import Annotated

import msgspec

from ..planning.problem.costs import MAX_COST
from .records import MAX_INTEGER, ArrayRecord, Integer

# No honest worker sends another: checked_cost made an error of it. The message is malformed.
Cost = Annotated[int, msgspec.Meta(ge=0, le=MAX_COST)]

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]


class Ready(ArrayRecord, frozen=True):
    """The job can run: number of samples in the source, and the workers' fingerprint."""

    count: Integer
    fingerprint: str


class SampleRef(ArrayRecord, frozen=True):
    """A sample in a lease: its ordinal, and its position in the source."""

    ordinal: Integer
    index: Integer


class WholeMicrobatch(ArrayRecord, frozen=True):
    """A microbatch all of whose samples a lease has: so many, from this one of its samples on."""

    first: Integer
    samples: Integer


class BatchItem(ArrayRecord, frozen=True):
    """A sample in a delivered microbatch: its name and the layout of its payload frame."""

    ordinal: Integer
    key: str
    header: bytes


class Hole(ArrayRecord, frozen=True):
    """A sample that could not be used, why, and the file it is in where that is known."""

    ordinal: Integer
    key: str
    reason: str
    source: str


class Probed(ArrayRecord, frozen=True):
    """One result of a probe lease: name, cost per resource, expected payload size in bytes."""

    ordinal: Integer
    key: str
    cost: tuple[Cost, ...]
    nbytes: Integer


class DecodedItem(ArrayRecord, frozen=True):
    """A decoded sample: name, costs as in Probed (none if probed before), layout of its payload."""

    ordinal: Integer
    key: str
    cost: tuple[Cost, ...]
    header: bytes


class PayloadHandle(ArrayRecord, frozen=True):
    """The place of a run of payloads in a worker's memory: see workers/lending/, workers/serving/.

    A run has one payload or several, side by side. token: the worker process' memory, serial: the
    run, never the same twice there; segment, offset, nbytes: its bytes, of a payload that is pulled
    (a run of its own) only their number.
    """

    token: Count
    serial: Count
    segment: Count
    offset: Count
    nbytes: Count


class PayloadServer(ArrayRecord, frozen=True):
    """A worker from which ranks pull payloads, and what they connect with: see workers/serving/.

    token: as in the handles of its payloads. key: the worker's public key, empty where nothing is
    encrypted. public, secret: the ranks' key pair under CURVE (Z85), else an empty key and a
    password.
    """

    token: Count
    address: str
    key: bytes
    public: bytes
    secret: bytes


class Handles(ArrayRecord, frozen=True):
    """The places of a message's payloads in runs; empty if all of them are in frames.

    run_of: for each item the number of its run among `runs`, -1 where its payload is in a frame.
    offsets, lengths: the place of its bytes in that run, (0, 0) without one.
    """

    runs: tuple[PayloadHandle, ...]
    run_of: tuple[Integer, ...]
    offsets: tuple[Count, ...]
    lengths: tuple[Count, ...]

    def places(self) -> Iterator[tuple[int, int, int]]:
        """Return the number of its run, the offset and the length of each item."""
        return zip(self.run_of, self.offsets, self.lengths, strict=True)

    def problem(self, items: int) -> str:
        """Return why these cannot be the handles of `items` items, "" if they can."""
        if not self.run_of and not self.offsets and not self.lengths and not self.runs:
            return ""
        if not len(self.run_of) == len(self.offsets) == len(self.lengths) == items:
            return f"handles of {len(self.run_of)} items, not of {items}"
        if items and len(self.runs) == 1 and self.run_of.count(0) == items:  # most often
            is_behind = max(map(operator.add, self.offsets, self.lengths)) > self.runs[0].nbytes
            return "a payload that ends behind its run" if is_behind else ""
        if items and not -1 <= min(self.run_of) <= max(self.run_of) < len(self.runs):
            return f"a payload in another than {len(self.runs)} runs"
        sizes = [*(run.nbytes for run in self.runs), 0]  # the last is found as number -1
        ends = map(operator.add, self.offsets, self.lengths)
        if any(map(operator.gt, ends, map(sizes.__getitem__, self.run_of))):
            return "a payload that ends behind its run"
        return ""


NO_HANDLES = Handles((), (), (), ())


class Weights(ArrayRecord, frozen=True):
    """The divisors of a loss: samples and label tokens without holes, at three levels."""

    samples: Integer
    label_tokens: Integer
    rank_samples: Integer
    rank_label_tokens: Integer
    step_samples: Integer
    step_label_tokens: Integer


class EpochPosition(ArrayRecord, frozen=True):
    """A position in an epoch: the window (first ordinal, first step), the step, the microbatch."""

    start: Integer
    window_step: Integer
    step: Integer
    microbatch: Integer


NO_PLACE = EpochPosition(-1, -1, -1, -1)
# The number of a WorkerReady that answers no Welcome.
UNASKED = -1
# The label tokens that ranks count are kept for this many steps, on both sides.
COUNTED_STEPS = 32

# What a worker works on: (lease, ordinal of the sample).
WorkInProgress = tuple[int, int]
IDLE: WorkInProgress = (0, -1)
# The worker has not reported it yet.
NOT_REPORTED: WorkInProgress = (-1, -1)
