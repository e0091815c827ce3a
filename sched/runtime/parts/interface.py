"""The interface between the executor and the parts of a model.

The executor owns the order, the transfers and what is kept between passes; a part owns parameters
and does the arithmetic. For each pass the executor waits for the values that it reads and hands
them over by name; it stores what the part returns until the last pass that reads it.

What vocabulary passes see and return, where a barrier's name means what its collective brought:

    pass  given                    returns
    S     CX: X (last stage)       S: this rank's statistics; logits: whatever it keeps
    C     CS: all ranks' S         C: its part of dX, or None where nobody needs it
    T     CS, logits               T: its part of dX (Algorithm 1)
    IF    -                        IF: its part of the embedding
    IB    CJ: d embedding          -

What an edge of the program takes from a pass is returned by the name `X_` and its kind: an EF
returns X_EF, features, and a B whose features' gradients an encoder waits for returns X_B beside B.
Passes at the edges' other ends are given a tuple by that name, a tensor for each of their edges.

The executor does the collective of a barrier by itself, as the barrier says: one that starts at the
first or last stage is a broadcast from there; one that only the first or last stage waits for is a
sum to there; any other gathers what every rank contributes, as a tensor (ranks, ...). A
contribution of None, which all ranks must agree on, leaves the collective out.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from ...ir.passes import Pass
from .step_data import StepData

Given = Mapping[str, Any]
Made = Mapping[str, Any]


class ModelPart(Protocol):
    """Runs the passes of some kinds on one rank; one object may serve several kinds and stages."""

    @property
    def kinds(self) -> frozenset[str]:
        """Return the kinds of passes that the part runs, such as {"S", "T", "C"}."""

    def begin(self, data: StepData) -> None:
        """Take the microbatches of the step that starts; parts of rank 0 get the same sizes."""

    def run(self, what: Pass, given: Given) -> Made:
        """Run one pass: from the values that it reads, by name, to those that it makes, by name.

        A value that is not in the mapping that is returned is None.
        """

    def finish(self) -> Tensor | None:
        """End the step: return the sum of the weighted losses that this rank has, or None.

        Over all ranks the sums add up to the step's loss, so only one rank returns each.
        """

    def modules(self) -> Iterable[nn.Module]:
        """Return the modules whose parameters this rank trains; each parameter on one rank."""
