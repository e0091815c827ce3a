"""Keep the gradients of earlier steps out of the sums over ranks.

Sums are made of `.grad` in place. What earlier steps left there is summed already, so it would
count once for every rank. It is put aside for a step and added afterwards, as `backward` adds to
what is there.
"""

from collections.abc import Iterable

from torch import Tensor, nn


class EarlierGradients:
    """The gradients that parameters have before a step, which starts without any."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._kept: list[tuple[nn.Parameter, Tensor]] = []
        for parameter in parameters:
            if parameter.grad is not None:
                self._kept.append((parameter, parameter.grad))
                parameter.grad = None

    def add(self) -> None:
        """Add the step's gradients to the earlier ones, in the memory of these."""
        kept, self._kept = self._kept, []
        for parameter, earlier in kept:
            if parameter.grad is not None:
                earlier.add_(parameter.grad)
            parameter.grad = earlier
