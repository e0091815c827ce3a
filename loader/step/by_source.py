"""Adds up a step's losses by source: what each data set of a Mixture is learned at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...workers.mixture.order import find_source
from ...workers.sources.labels import IGNORED
from .info import Step, StepInfo


@dataclass(frozen=True, slots=True)
class SourceLoss:
    """The sum of a source's losses, and how many tokens with a label, or samples, they are of."""

    total: float
    count: int

    @property
    def mean(self) -> float:
        """The mean loss; nan where the source has none."""
        return self.total / self.count if self.count else float("nan")


def loss_by_source(
    losses: torch.Tensor | Sequence[torch.Tensor],
    info: StepInfo | Sequence[StepInfo] | Step[Any],
    batch: Any = None,
    group: Any = None,
) -> dict[str, SourceLoss]:
    """Return the losses of a microbatch, or of a step's microbatches, by source of a Mixture.

    losses: of each microbatch, unreduced: one of each sample (samples,), or of each token of a
    batch of ours, (1, tokens) or (samples, longest), or one less where labels were shifted by
    cutting; 0 where there is no label, as cross_entropy(reduction="none") has it. info: its
    StepInfo; of several a list, or the Step. batch: with losses of tokens the batch, or a list; a
    Step has its own. group: a process group whose ranks add up; each has to call this, and all get
    the same. Names are those of all sources, in the mixture's order.

    Copies a few numbers from the device, once. Raises ValueError for data that are no mixture, and
    losses that are of neither samples nor tokens.

    >>> info = StepInfo(0, 0, 0, 1, 0, 1, 3, 0, 3, 0, 3, 0, ("a/1", "b/7", "a@2/1"),
    ...                 sources={"a": 2, "b": 1})
    >>> loss_by_source(torch.tensor([1.0, 2.0, 4.0]), info)
    {'a': SourceLoss(total=5.0, count=2), 'b': SourceLoss(total=2.0, count=1)}
    """
    batches: Any = batch
    if isinstance(info, Step):
        infos, batches = info.infos, info.microbatches if batch is None else batch
    else:
        infos = (info,) if isinstance(info, StepInfo) else tuple(info)
    parts = [losses] if isinstance(losses, torch.Tensor) else [*losses]
    if not isinstance(batches, list | tuple):
        batches = [batches] * len(infos)
    if not len(parts) == len(infos) == len(batches):
        raise ValueError(
            f"{len(parts)} losses, {len(infos)} infos and {len(batches)} batches: give one of each "
            "microbatch"
        )
    names = list(infos[0].sources) if infos else []
    if not names:
        raise ValueError(
            "losses by source need the data of a Mixture, whose StepInfo.sources says which there "
            "are: make one, cp.Mixture({'a': data, ...}), of one source too"
        )
    device = parts[0].device
    sums = torch.zeros(2, len(names), dtype=torch.float64, device=device)
    for part, part_info, part_batch in zip(parts, infos, batches, strict=True):
        if part_info.keys:  # a microbatch of none may have a loss, of a sample that weighs nothing
            numbers = torch.tensor(
                [names.index(find_source(key)) for key in part_info.keys], device=device
            )
            sums.index_add_(1, numbers, _sum_by_sample(part.detach(), part_info, part_batch))
    if group is not None:
        torch.distributed.all_reduce(sums, group=group)
    totals, counts = sums.tolist()
    return {n: SourceLoss(t, round(c)) for n, t, c in zip(names, totals, counts, strict=True)}


def _sum_by_sample(losses: torch.Tensor, info: StepInfo, batch: Any) -> torch.Tensor:
    """Return each sample's sum of losses, and number of them (2, samples)."""
    samples = len(info.keys)
    if losses.shape == (samples,):
        return torch.stack([losses.double(), torch.ones_like(losses, dtype=torch.float64)])
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    if labels is None:
        raise ValueError(
            f"losses are {tuple(losses.shape)}, and the microbatch has {samples} samples: give one "
            "loss a sample, or one a token and the batch, which has labels"
        )
    labels = labels.to(losses.device)
    has_label = labels != IGNORED
    if labels.dim() == 2 and "cu_seq_lens" not in batch:  # (samples, longest)
        # nothing comes before the first that would be asked for it
        has_label[:, 0] &= not info.shift_labels
        size = len(labels)
        places = torch.arange(size, device=losses.device)[:, None].expand_as(labels)
    else:
        ends = batch.get("cu_seq_lens_padded", batch.get("cu_seq_lens")).to(losses.device)
        size, number = len(ends), torch.arange(labels.numel(), device=losses.device)
        places = (torch.bucketize(number, ends, right=True) - 1).reshape(labels.shape)
    longest = labels.shape[-1]
    length = losses.numel() * longest // max(1, labels.numel())
    if losses.numel() * longest != length * labels.numel() or longest - length not in (0, 1):
        raise ValueError(
            f"losses are {tuple(losses.shape)}, and labels {tuple(labels.shape)}: give one loss a "
            "token, or one less a row, of cross_entropy(..., reduction='none')"
        )
    # The token before a label has its loss, or the label itself: either is of the same sample, as
    # the first of a sample has none. Rows and sequences of filling have none.
    sums = torch.zeros(2, size, dtype=torch.float64, device=losses.device)
    sums[0].index_add_(0, places[..., :length].flatten(), losses.double().flatten())
    sums[1].index_add_(0, places.flatten(), has_label.double().flatten())
    return sums[:, :samples]
