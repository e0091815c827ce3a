"""Defines the records inside messages: samples of leases and batches, holes, epoch positions.

Those that a loop without a balancer uses, too, are here, so that it loads no others.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from ..planning.problem.costs import MAX_COST
from .records import MAX_INTEGER, ArrayRecord, Integer

# No honest worker sends another: checked_cost made an error of it. The message is malformed.
Cost = Annotated[int, msgspec.Meta(ge=0, le=MAX_COST)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
# Why a sample is a hole of which no more is known.
KNOWN_BEFORE = "is to be left out (skip_keys), or could not be used before the run was resumed"


class Ready(ArrayRecord, frozen=True):
    """The job can run: number of samples in the source, and the workers' fingerprint."""

    count: Integer
    fingerprint: str


class SampleRef(ArrayRecord, frozen=True):
    """A sample in a lease: its ordinal, and its position in the source."""

    ordinal: Integer
    index: Integer


class BatchItem(ArrayRecord, frozen=True):
    """A sample in a delivered microbatch: its name, the layout of its payload, and where that is.

    token, serial: the worker from which it is pulled, and its number there; serial 0: it is a frame
    of the message. nbytes: of a payload that is pulled, else 0.
    """

    ordinal: Integer
    key: str
    header: bytes
    token: Count
    serial: Count
    nbytes: Count


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
    """A decoded sample: name, costs as in Probed (none if probed before), layout of its payload.

    serial, nbytes: of a payload that the worker keeps for ranks to pull: its number there, which is
    never used again, and its size; (0, 0) where it is a frame of the message.
    """

    ordinal: Integer
    key: str
    cost: tuple[Cost, ...]
    header: bytes
    serial: Count
    nbytes: Count


class PayloadServer(ArrayRecord, frozen=True):
    """A worker from which ranks pull payloads, and what they connect with: see workers/serving/.

    token: as in `BatchItem`. key: the worker's public key, empty where nothing is
    encrypted. public, secret: the ranks' key pair under CURVE (Z85), else an empty key and a
    password.
    """

    token: Count
    address: str
    key: bytes
    public: bytes
    secret: bytes


class Weights(ArrayRecord, frozen=True):
    """The divisors of a loss: samples and label tokens without holes, at three levels."""

    samples: Integer
    label_tokens: Integer
    rank_samples: Integer
    rank_label_tokens: Integer
    step_samples: Integer
    step_label_tokens: Integer


class EpochPosition(ArrayRecord, frozen=True):
    """A position in an epoch: the window (first ordinal, first step), the step, the microbatch.

    costs: `Window.costs_digest` of the window that a step is in, which decides what was delivered
    of it; after the last step of a window that of the window before. "" where nothing depends on
    it, see `reached`.
    """

    start: Integer
    window_step: Integer
    step: Integer
    microbatch: Integer
    costs: str

    def reached(self) -> "EpochPosition":
        """Return a step's `after` as the position of a run: between windows no costs matter."""
        return msgspec.structs.replace(self, costs="") if self.step == self.window_step else self

    def check_in_window(self, first_step: int, microbatches: Sequence[int], costs: str) -> None:
        """Raise ValueError if the window that was planned at `start` has no such position.

        microbatches: of a rank in each step of the window, the first of which is `first_step`;
        costs: the digest of its samples' costs.
        """
        if self.costs and self.costs != costs:
            raise ValueError(
                f"the ledger was saved inside a window of the plan, at microbatch "
                f"{self.microbatch} of step {self.step}, and its samples cost something else now "
                f"(the digest of their costs was {self.costs} and is {costs}): another plan would "
                "lose some and repeat others; resume with the costs, tokenizer, transform and data "
                f"of then, or from a ledger between windows (such as that of step {first_step})"
            )
        place = self.step - first_step
        if place > 0 and place >= len(microbatches):
            raise ValueError(
                f"the ledger is at step {self.step}, but the window it stands in ends with step "
                f"{first_step + len(microbatches) - 1}: it was changed, or is of other data"
            )
        if 0 <= place < len(microbatches) and self.microbatch >= microbatches[place]:
            raise ValueError(
                f"the ledger is at microbatch {self.microbatch} of step {self.step}, which has "
                f"{microbatches[place]}: it was changed, or is of other data"
            )


NO_PLACE = EpochPosition(-1, -1, -1, -1, "")
# The label tokens that ranks count are kept for this many steps, on both sides.
COUNTED_STEPS = 32

# What a worker works on: (lease, ordinal of the sample).
WorkInProgress = tuple[int, int]
IDLE: WorkInProgress = (0, -1)
# It has leases, and works for another job: it may end without their samples having a part in it.
ELSEWHERE: WorkInProgress = (-1, 0)
# The worker has not reported it yet.
NOT_REPORTED: WorkInProgress = (-1, -1)
