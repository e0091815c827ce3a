"""Keep the gradients of earlier steps out of the sums over ranks.

Sums are made of `.grad` in place. What earlier steps left there is summed already, so it would
count once for every rank. It is put aside for a step and added afterwards, as `backward` adds to
what is there.
"""

from collections.abc import Iterable

from torch import nn


class EarlierGradients:
    """Puts aside the gradients that parameters have before a step, which starts without any.

    At its end the step's are added to them; a step that raises leaves them as they were.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        # once each, though stages may share it
        self._kept = [(parameter, parameter.grad) for parameter in dict.fromkeys(parameters)]

    def __enter__(self) -> None:
        for parameter, _ in self._kept:
            parameter.grad = None

    def __exit__(self, raised: type[BaseException] | None, *_: object) -> None:
        kept, self._kept = self._kept, []
        for parameter, earlier in kept:
            if raised is None and earlier is not None and parameter.grad is not None:
                earlier.add_(parameter.grad)  # in the memory of the earlier
            if raised is not None or earlier is not None:
                parameter.grad = earlier
