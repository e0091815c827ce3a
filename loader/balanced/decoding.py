"""Makes batches of samples as a balancer sends them; the local loop's workers have made theirs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from ...balancer.protocol.rank_session import Arrival
from ...workers.codec.frames import decode_packed
from ..collate.ahead import StackedAhead
from ..collate.chosen import BatchMaker
from ..collate.payloads import is_laid_out, payload_buffer, read_laid_out
from ..step.batch_labels import count_label_tokens_of
from ..step.info import StepInfo
from ..step.label_check import LabelCheck
from .spare import SpareSample


@dataclass(slots=True)
class Decoder:
    """Decodes and collates the microbatches of one loader; fields as BalancedLoader's.

    counts_labels: whether samples' labels are compared, as long as `labels` asks for some;
    counts_batches: whether label tokens are counted in batches.
    """

    batches: BatchMaker
    local: bool
    labels: LabelCheck
    counts_labels: bool
    counts_batches: bool
    spare: SpareSample | None
    _stacked: StackedAhead = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._stacked = StackedAhead(self.batches, self.local)

    def made(
        self,
        arrival: Arrival,
        info: StepInfo,
        start: int,
        following: Callable[[Arrival], Iterable[Arrival]],
    ) -> tuple[Any, StepInfo]:
        """Return a microbatch's batch and its info, with what was counted in the batch.

        start: the ordinal that its window begins at; following: see MicrobatchSource.
        """
        batch, batches = arrival.batch, self.batches
        # Labels are compared in samples, or counted in their batch; else no sample need be made.
        compares = self.counts_labels and self.labels.left > 0
        if is_laid_out(arrival):
            made = read_laid_out(arrival)
            if compares:
                keys = [item.key for item in batch.items]
                self.labels.compare_batch(made, batch.weights.label_tokens, keys)
            return batches.finished(made, info), info
        if not (compares or self.counts_batches):
            stacked = self._stacked.take(arrival, info, following)
            if stacked is not None:
                return batches.finished(stacked, info), info
        samples = [
            decode_packed(item.header, payload_buffer(payload), self.local)
            for item, payload in zip(batch.items, arrival.payloads, strict=True)
        ]
        if compares:
            keys = [item.key for item in batch.items]
            self.labels.compare(samples, batch.weights.label_tokens, keys)
        if not samples and self.spare is not None:
            spared = batches.collated([self.spare(info.epoch, start)], info)
            return batches.finished(self.spare.weightless(spared), info), info
        collated = batches.collated(samples, info)
        if self.counts_batches:
            info = replace(info, label_tokens=count_label_tokens_of(collated, samples))
        return batches.finished(collated, info), info
