"""Defines the records inside messages: holes, weights, positions in an epoch, where workers are.

A loop without a balancer uses most of them, and loads no others.
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


class Hole(ArrayRecord, frozen=True):
    """A sample that could not be used, why, and the file it is in where that is known."""

    ordinal: Integer
    key: str
    reason: str
    source: str


class PayloadServer(ArrayRecord, frozen=True):
    """A worker from which ranks pull payloads, and what they connect with: see workers/serving/.

    token: by which messages name it. key: the worker's public key, empty where nothing is
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


# The label tokens that ranks count are kept for this many steps, on both sides.
COUNTED_STEPS = 32
