"""Lays out small microbatches together with those before them, and keeps each until its turn."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from ...balancer.protocol.messages import Batch
from ...balancer.protocol.rank_session import Arrival
from ...workers.lending.placed_payloads import PlacedPayloads
from ..step.info import StepInfo
from .chosen import BatchMaker
from .payloads import bytes_of, is_laid_out

# So many microbatches at most are laid out at a time, of so many bytes together: the memory of one
# that is kept keeps that of all.
MOST_TOGETHER, MOST_BYTES = 16, 1 << 20


class StackedAhead:
    """Makes the batches of microbatches whose samples need not be decoded."""

    def __init__(self, batches: BatchMaker, local: bool) -> None:
        """`local`: the samples come from processes of this machine."""
        self._batches = batches
        self._local = local
        # By the identity of their messages, which come again if a microbatch is asked for again.
        self._made: dict[int, tuple[Batch, Any]] = {}
        self._alone = 0

    def take(
        self, arrival: Arrival, info: StepInfo, following: Callable[[Arrival], Iterable[Arrival]]
    ) -> Any | None:
        """Return the batch of a microbatch, once; None where its samples have to be decoded.

        `following` returns the microbatches behind it that are here, with their payloads.
        """
        kept = self._made.pop(id(arrival.batch), None)
        if kept is not None and kept[0] is arrival.batch:
            return kept[1]
        if not arrival.batch.items:
            return None
        together = self._small(arrival, following)
        stacked = self._stack(together, info)
        if stacked is None and len(together) > 1:
            # One of them is unusual: each finds out for itself.
            self._alone = len(together) - 1
            together = [arrival]
            stacked = self._stack(together, info)
        if stacked is None:
            return None
        if len(together) > 1:
            pairs = zip(together, stacked, strict=True)
            self._made = {id(each.batch): (each.batch, made) for each, made in pairs}
            del self._made[id(arrival.batch)]
        return stacked[0]

    def _stack(self, arrivals: Sequence[Arrival], info: StepInfo) -> list[Any] | None:
        undecoded = [([item.header for item in a.batch.items], a.payloads) for a in arrivals]
        return self._batches.stacked(undecoded, info, self._local)

    def _small(
        self, arrival: Arrival, following: Callable[[Arrival], Iterable[Arrival]]
    ) -> list[Arrival]:
        """Return a microbatch and those behind it that are small enough to be laid out with it."""
        together = [arrival]
        if self._alone:
            self._alone -= 1
            return together
        left = MOST_BYTES - _nbytes(arrival.payloads)
        if left <= 0 or not self._batches.takes_several:
            return together
        for each in following(arrival):
            left -= _nbytes(each.payloads)
            is_other = not each.batch.items or is_laid_out(each)
            if left < 0 or is_other or len(together) == MOST_TOGETHER:
                break
            together.append(each)
        return together


def _nbytes(payloads: Collection[Any]) -> int:
    if isinstance(payloads, PlacedPayloads):
        return sum(payloads.handles.lengths)
    return sum([len(bytes_of(each)) for each in payloads])
