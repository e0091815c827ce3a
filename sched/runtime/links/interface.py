"""The interface to the other ranks: one-way channels and collectives, started and waited for later.

A channel goes from one rank to another and delivers in the order of its sends: no tags. A
communicator runs its collectives in the order in which the ranks enter them. Nothing here waits
but `Transfer.wait`.
"""

from typing import Protocol

from torch import Tensor

from ..compiled import Collective, Value
from ..parts import TensorSpec


class Transfer(Protocol):
    """A transfer under way."""

    def done(self) -> bool:
        """Return whether `wait` would return at once."""

    def wait(self, deadline_s: float) -> Tensor | None:
        """Return what arrives here, None at an end that only gives.

        Raises TimeoutError after the deadline, and RuntimeError if a peer is lost.
        """


class Links(Protocol):
    """The connection of one rank to the others; ranks are those of the pipeline."""

    def send(self, tensor: Tensor, target: int, value: Value) -> Transfer:
        """Start to send; the tensor may not change until the transfer is done."""

    def receive(self, spec: TensorSpec, source: int, value: Value) -> Transfer:
        """Post a receive of the channel's next message, which is this value."""

    def enter(
        self, collective: Collective, tensor: Tensor | None, spec: TensorSpec, value: Value
    ) -> Transfer:
        """Enter a collective with this rank's contribution, whose memory is given away.

        `tensor`: None on ranks to which something is broadcast. `spec`: of what is broadcast.
        """
