"""`check_equivalence`: compares a user's own model on every layout with single samples.

Theory of operation. Some steps are taken from the loader, their batches taken apart into samples,
and the loss of a step and its gradient computed four times: sample by sample, which is what is
meant; from padded and from packed batches of the same samples; and from the loader's own batches
with scale_loss, which is what will be trained. Where one of them is far off, experiments name why.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ...balancer.planning.problem.options import LayoutName
from ..step.info import Step, StepInfo, moved
from .causes import Experiments, LossOutcome, LossSum, hf_loss_sum, outcome, part_of_mean
from .layouts import COLLATE_BY_LAYOUT, KNOWN_FIELDS, Array, Batch, collate_padded

LENGTHS = "_lengths"
# Fields of a layout's own, which no sample has.
MADE = frozenset({
    "attention_mask", "position_ids", "cu_seq_lens", "max_length", "images_per_sample",
})  # fmt: skip


def samples_of(batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the samples of a padded or packed batch; ValueError for a batch of another layout.

    Each sample's first label is -100, as the layouts make it; samples that had no labels get some
    that are all -100. A dummy tile belongs to no sample.
    """
    if "input_ids" not in batch or not ("cu_seq_lens" in batch or "attention_mask" in batch):
        raise ValueError(
            "only batches of layout 'padded' or 'packed' can be taken apart, and this one has "
            f"{', '.join(map(str, batch))[:200]}: give Balance(layout='packed')"
        )
    ids, labels = np.asarray(batch["input_ids"]), np.asarray(batch["labels"])
    if "cu_seq_lens" in batch:
        # packed: one row has all samples, each between two borders
        ends = np.asarray(batch["cu_seq_lens"]).tolist()
        places = [(0, slice(*each)) for each in pairwise(ends)]
    else:
        lengths = np.asarray(batch["attention_mask"]).sum(axis=1).tolist()
        places = [(row, slice(0, length)) for row, length in enumerate(lengths)]
    samples = [{"input_ids": ids[place], "labels": labels[place]} for place in places]
    for name in batch:
        if name not in KNOWN_FIELDS | MADE and not _is_lengths(name, batch):
            values = _values(name, batch)
            for sample, value in zip(samples, values, strict=True):
                sample[name] = value
    if "pixel_values" in batch:
        _give_images(samples, batch)
    return samples


def _is_lengths(name: str, batch: Mapping[str, Any]) -> bool:
    return name.endswith(LENGTHS) and name.removesuffix(LENGTHS) in batch


def _values(name: str, batch: Mapping[str, Any]) -> Any:
    """Return a field's value of each sample."""
    if f"{name}{LENGTHS}" not in batch:
        return batch[name] if isinstance(batch[name], list) else np.asarray(batch[name])
    return _parts(np.asarray(batch[name]), batch[f"{name}{LENGTHS}"])


def _give_images(samples: list[dict[str, Any]], batch: Mapping[str, Any]) -> None:
    """Set each sample's tiles and how many its images have."""
    owners = _parts(np.asarray(batch["tiles_per_image"]), batch["images_per_sample"])
    tiles = _parts(np.asarray(batch["pixel_values"]), [int(each.sum()) for each in owners])
    for sample, owned, pixels in zip(samples, owners, tiles, strict=True):
        sample["tiles_per_image"], sample["pixel_values"] = owned, pixels


def _parts(whole: Array, lengths: Any) -> list[Array]:
    ends = np.cumsum([0, *np.asarray(lengths).tolist()]).tolist()
    return [whole[start:end] for start, end in pairwise(ends)]


TOLERANCE, TOLERANCE_HALF = 1e-4, 3e-2
DROPOUT = (
    "dropout, or another random choice: the loss of the same batch is another each time; the rest "
    "was compared in eval mode"
)
COUNTS = (
    "label tokens: the loader counts {} in the steps that were compared, and the batches have {}; "
    "loss.md says who counts them"
)


class StepwiseLoader(Protocol):
    """The part of a balanced DataLoader that is used here."""

    def steps(self) -> Iterator[Step[Any]]:
        """Begin an epoch, or go on in one."""

    def state_dict(self, after: StepInfo | None = None) -> dict[str, Any]:
        """Return the ledger."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a ledger."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A layout's distance from sample by sample: loss, gradient, the parameter farthest off."""

    layout: str
    loss: float
    gradient: float
    parameter: str
    differs: bool


@dataclass(frozen=True, slots=True)
class Equivalence:
    """The findings of check_equivalence; `causes` say what differs, in the words of its docs."""

    comparisons: tuple[Comparison, ...]
    causes: tuple[str, ...]
    tolerance: float

    @property
    def ok(self) -> bool:
        """Return whether every layout gave the loss and the gradient of the single samples."""
        return not any(each.differs for each in self.comparisons)

    def __str__(self) -> str:
        """Return a table, and what differs."""
        lines = [f"against sample by sample, within {self.tolerance:g}:"]
        for each in self.comparisons:
            verdict = f"differs, most in {each.parameter}" if each.differs else "same"
            lines.append(
                f"  {each.layout:9} loss {each.loss:.1e}  gradient {each.gradient:.1e}  {verdict}"
            )
        return "\n".join([*lines, *(f"  * {cause}" for cause in self.causes)])


def check_equivalence(
    model: nn.Module,
    loader: StepwiseLoader,
    *,
    loss: LossSum = hf_loss_sum,
    steps: int = 1,
    layouts: Sequence[LayoutName] = ("padded", "packed"),
    tolerance: float | None = None,
) -> Equivalence:
    """Compare a model's loss and gradient, sample by sample, with padded, packed and balanced.

    model: not wrapped by DDP or FSDP; its mode, weights and `.grad` stay as they are. loader: a
    balanced DataLoader with layout "padded" or "packed"; its position stays where it is. loss: a
    function from (model, batch) to the sum of the losses of the batch's label tokens, for batches
    of every one of `layouts`; the default is for Hugging Face causal models on text. steps: how
    many are compared. tolerance: relative, of loss and each tensor's largest gradient; by default
    1e-4, and 3e-2 for 16-bit parameters.

    Raises ValueError for batches of another layout, and for an epoch with no steps left.
    """
    first = next(iter(model.parameters()), torch.zeros(()))
    if tolerance is None:
        tolerance = TOLERANCE if first.dtype in (torch.float32, torch.float64) else TOLERANCE_HALF
    position = loader.state_dict()
    try:
        taken = list(islice(loader.steps(), steps))
    finally:
        loader.load_state_dict(position)
    if not taken:
        raise ValueError("the loader has no step left in this epoch: set_epoch() begins another")
    place = partial(moved, device=first.device)
    was_training = model.training
    with torch.random.fork_rng(devices=[]):
        try:
            return _compare(_Losses(model, loss, place), taken, layouts, tolerance)
        finally:
            model.train(was_training)


@dataclass(frozen=True, slots=True)
class _Losses:
    """A model's losses: `compute` as in check_equivalence, `place` moves a batch to it."""

    model: nn.Module
    compute: LossSum
    place: Callable[[Batch], Batch]

    def of(self, batches: Sequence[Batch]) -> list[Callable[[], Tensor]]:
        """Return what computes the loss of each batch, when it is called."""
        return [partial(self._one, batch) for batch in batches]

    def _one(self, batch: Batch) -> Tensor:
        return self.compute(self.model, self.place(batch))


def _compare(
    losses: _Losses, steps: Sequence[Step[Any]], layouts: Sequence[LayoutName], tolerance: float
) -> Equivalence:
    # an empty microbatch has no sample to compare, and weighs nothing
    filled = [
        [(batch, info) for batch, info in zip(s.microbatches, s.infos, strict=True) if info.samples]
        for s in steps
    ]
    groups = [[samples_of(batch) for batch, _ in step] for step in filled]
    together = [group for step in groups for group in step]
    samples = [sample for group in together for sample in group]
    causes = _leave_chance_out(losses.model, losses.of([collate_padded(samples[:1])] * 2))
    alone = outcome(losses.model, losses.of([collate_padded([sample]) for sample in samples]))
    compared = []
    for layout in layouts:
        batches = [COLLATE_BY_LAYOUT[layout](group) for group in together]
        compared.append(_row(layout, alone, outcome(losses.model, losses.of(batches)), tolerance))
    compared.append(_balanced(losses, filled, groups, tolerance))
    # the experiments cost several passes each: only where there is something to explain
    if any(each.differs for each in compared):
        experiments = Experiments(losses.model, losses.compute, losses.place, tolerance)
        causes += [*_wrong_counts(filled, groups), *experiments.causes(samples)]
    return Equivalence(tuple(compared), tuple(causes), tolerance)


def _leave_chance_out(model: nn.Module, twice: Sequence[Callable[[], Tensor]]) -> list[str]:
    """Switch a model to eval mode if the same batch's loss is another the second time; say so."""
    if len({float(each().detach()) for each in twice}) == 1:
        return []
    model.eval()
    return [DROPOUT]


Filled = list[list[tuple[Batch, StepInfo]]]
Groups = list[list[list[dict[str, Any]]]]


def _balanced(losses: _Losses, filled: Filled, groups: Groups, tolerance: float) -> Comparison:
    """Compare what a loop with scale_loss trains on with the means over the same samples."""
    shares, means = list[Callable[[], Tensor]](), list[Callable[[], Tensor]]()
    for step, inside in zip(filled, groups, strict=True):
        infos = [info for _, info in step]
        # these are one process' microbatches: the step on all ranks may have more
        told = sum(info.label_tokens for info in infos)
        for info, compute in zip(infos, losses.of([batch for batch, _ in step]), strict=True):
            if info.step_label_tokens:
                shares.append(partial(lambda f, i, n: part_of_mean(f(), i, n), compute, info, told))
        labelled = max(sum(map(_count, (s for group in inside for s in group))), 1)
        alone = losses.of([collate_padded([s]) for group in inside for s in group])
        means += [partial(lambda f, n: f() / n, compute, labelled) for compute in alone]
    return _row("balanced", outcome(losses.model, means), outcome(losses.model, shares), tolerance)


def _wrong_counts(filled: Filled, groups: Groups) -> list[str]:
    told = sum(info.label_tokens for step in filled for _, info in step)
    there = sum(_count(sample) for step in groups for group in step for sample in group)
    return [] if told == there else [COUNTS.format(told, there)]


def _count(sample: dict[str, Any]) -> int:
    return int((sample["labels"][1:] != -100).sum())


def _row(layout: str, alone: LossOutcome, found: LossOutcome, tolerance: float) -> Comparison:
    loss, gradient, parameter = alone.distance(found)
    differs = not (loss <= tolerance and gradient <= tolerance)  # NaN differs, too
    return Comparison(layout, loss, gradient, parameter, differs)
