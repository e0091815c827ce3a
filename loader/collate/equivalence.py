"""`check_equivalence`: compares a user's own model on every layout with single samples.

Theory of operation. Some steps are taken from the loader, their batches taken apart into samples,
and the loss of a step and its gradient computed four times: sample by sample, which is what is
meant; from padded and from packed batches of the same samples; and from the loader's own batches
with scale_loss, which is what will be trained. Where one of them is far off, experiments name why.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ...balancer.planning.problem.options import LayoutName
from ...workers.sources.labels import IGNORED
from ..models.kwargs import hf_kwargs
from ..models.proof import prove_packing
from ..step.info import Step, StepInfo, moved
from ..step.loss import scale_loss
from .causes import BORDERS, find_causes
from .fields import Array, Batch
from .layouts import COLLATE_BY_LAYOUT, RESERVED, collate_padded

TOLERANCE, TOLERANCE_HALF = 1e-4, 3e-2
DROPOUT = (
    "dropout, or another random choice: the loss of the same batch is another each time; the rest "
    "was compared in eval mode"
)
COUNTS = (
    "label tokens: the loader counts {} in the steps that were compared, and the batches have {}; "
    "loss.md says who counts them"
)
# (model, batch) -> the sum of the losses of the batch's label tokens.
LossSum = Callable[[Any, Batch], Tensor]
LENGTHS = "_lengths"


def hf_loss_sum(model: Any, batch: Batch) -> Tensor:
    """Return a Hugging Face causal model's loss, summed over label tokens; text only.

    Raises ValueError for a batch with images, whose inputs are each model's own.
    """
    if "pixel_values" in batch:
        raise ValueError(
            "batches have images, and each model takes them in its own way: give loss=, a function "
            "from (model, batch) to the sum of the losses of its label tokens"
        )
    output = model(input_ids=batch["input_ids"], labels=batch["labels"], **_told(batch, model))
    count = int((batch["labels"][..., 1:] != IGNORED).sum())
    total: Tensor = output.loss * count if count else output.logits.sum() * 0.0
    return total


def _cross_entropy(model: Any, batch: Batch) -> Tensor:
    """Return the sum of cross-entropies of a Hugging Face causal model's logits, nothing added."""
    logits = model(input_ids=batch["input_ids"], **_told(batch, model)).logits
    targets = batch["labels"][:, 1:].flatten()
    return functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), targets, ignore_index=IGNORED, reduction="sum"
    )


def _told(batch: Batch, model: Any) -> dict[str, Any]:
    if "cu_seq_lens" in batch:
        return hf_kwargs(batch, model)
    return {"attention_mask": batch["attention_mask"], "use_cache": False}


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
    """The findings of check_equivalence; `causes` say what differs, in the words of its docs.

    packing: what two samples of its own say of the model with cp.hf_kwargs(batch, model): "exact",
    "refused" (it mixes them) or "not proved"; "" where the loss is a function of the user's.
    """

    comparisons: tuple[Comparison, ...]
    causes: tuple[str, ...]
    tolerance: float
    packing: str = ""

    @property
    def ok(self) -> bool:
        """Return whether every layout gave the loss and the gradient of the single samples."""
        return self.packing != "refused" and not any(each.differs for each in self.comparisons)

    def __str__(self) -> str:
        """Return a table, and what differs."""
        lines = [f"against sample by sample, within {self.tolerance:g}:"]
        for each in self.comparisons:
            verdict = f"differs, most in {each.parameter}" if each.differs else "same"
            lines.append(
                f"  {each.layout:9} loss {each.loss:.1e}  gradient {each.gradient:.1e}  {verdict}"
            )
        packing = [f"  samples of a pack apart: {self.packing}"] if self.packing else []
        return "\n".join([*lines, *packing, *(f"  * {cause}" for cause in self.causes)])


def check_equivalence(
    model: nn.Module,
    loader: Any,
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
    1e-4, and 3e-2 for 16-bit parameters. With the default loss, two short samples of its own are
    packed too: a model that mixes them is not ok, whatever the loader's samples show.

    Raises ValueError for batches of another layout, for an epoch with no steps left, and for a
    model that raises for any packed batch.
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
    was_training = model.training
    with torch.random.fork_rng(devices=[]):
        try:
            return _compare(model, loss, taken, layouts, tolerance)
        finally:
            model.train(was_training)


@dataclass(frozen=True, slots=True)
class LossOutcome:
    """A loss, and its gradient with respect to each trained parameter, by name."""

    loss: float
    gradients: dict[str, Tensor]

    def compare(self, layout: str, found: "LossOutcome", tolerance: float) -> Comparison:
        """Return how far another is from this.

        Relative to this loss, and to each tensor's largest value (or a thousandth of the largest of
        all, as what is zero but for rounding has no size of its own).
        """
        loss = abs(found.loss - self.loss) / max(abs(self.loss), 1e-12)
        largest = {name: float(g.abs().max()) for name, g in self.gradients.items() if g.numel()}
        floor = max(largest.values(), default=0.0) / 1000 or 1.0
        off = {
            name: float((found.gradients[name] - self.gradients[name]).abs().max())
            / max(size, floor)
            for name, size in largest.items()
        }
        worst = max(off, key=lambda name: off[name], default="")
        gradient = off.get(worst, 0.0)
        differs = not (loss <= tolerance and gradient <= tolerance)  # NaN differs, too
        return Comparison(layout, loss, gradient, worst, differs)


def outcome(model: nn.Module, shares: Iterable[Tensor]) -> LossOutcome:
    """Return the sum of some losses and its gradient; the model's own `.grad` stay as they are."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total, sums = 0.0, {name: torch.zeros_like(p) for name, p in trained.items()}
    for loss in shares:
        total += float(loss.detach())
        found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        for name, gradient in zip(trained, found, strict=True):
            if gradient is not None:
                sums[name] += gradient
    return LossOutcome(total, sums)


def _compare(
    model: nn.Module,
    loss: LossSum,
    steps: Sequence[Step[Any]],
    layouts: Sequence[LayoutName],
    tolerance: float,
) -> Equivalence:
    device = next(iter(model.parameters()), torch.zeros(())).device

    def compute(batch: Batch) -> Tensor:
        return loss(model, moved(batch, device))

    # an empty microbatch has no sample to compare, and weighs nothing
    filled = [
        [(batch, info) for batch, info in zip(s.microbatches, s.infos, strict=True) if info.samples]
        for s in steps
    ]
    groups = [[samples_of(batch) for batch, _ in step] for step in filled]
    together = [group for step in groups for group in step]
    samples = [sample for group in together for sample in group]
    causes = []
    proof = None
    if loss is hf_loss_sum and "packed" in layouts:
        proof = prove_packing(model)
        if proof.raises:
            raise ValueError(proof.reason)
        causes += [proof.reason] if proof.status == "refused" else []
    first = collate_padded(samples[:1])
    if float(compute(first).detach()) != float(compute(first).detach()):
        model.eval()
        causes.append(DROPOUT)
    alone = outcome(model, (compute(collate_padded([sample])) for sample in samples))
    compared = []
    for layout in layouts:
        batches = (COLLATE_BY_LAYOUT[layout](group) for group in together)
        found = outcome(model, map(compute, batches))
        compared.append(alone.compare(layout, found, tolerance))
    # what a loop with scale_loss trains on, and the means over the same samples
    means = outcome(
        model,
        (
            compute(collate_padded([sample])) / max(sum(map(_count, chain(*inside))), 1)
            for inside in groups
            for sample in chain(*inside)
        ),
    )
    shares = outcome(model, chain(*(_shares(compute, step) for step in filled)))
    compared.append(means.compare("balanced", shares, tolerance))
    # the experiments cost several passes each: only where there is something to explain
    if any(each.differs for each in compared):
        told, there = sum(i.label_tokens for s in filled for _, i in s), sum(map(_count, samples))
        causes += [COUNTS.format(told, there)] if told != there else []
        with torch.no_grad():
            plain = None
            if loss is hf_loss_sum:
                plain = lambda batch: float(_cross_entropy(model, moved(batch, device)))  # noqa: E731
            causes += find_causes(lambda batch: float(compute(batch)), samples, tolerance, plain)
    if proof and proof.status == "refused":
        # no call of hf_kwargs keeps samples apart: it is not advised
        causes = [cause for cause in causes if cause != BORDERS]
    return Equivalence(tuple(compared), tuple(causes), tolerance, proof.status if proof else "")


def _shares(
    compute: Callable[[Batch], Tensor], step: Sequence[tuple[Batch, StepInfo]]
) -> Iterator[Tensor]:
    """Yield the microbatches' shares, by scale_loss, of the mean over a step of this process."""
    # these are one process' microbatches: the step on all ranks may have more
    told = sum(info.label_tokens for _, info in step)
    for batch, info in step:
        if info.step_label_tokens:
            part = scale_loss(compute(batch), info, reduction="sum")
            yield part * (info.step_label_tokens / max(told, 1))


def _count(sample: dict[str, Any]) -> int:
    return int((sample["labels"][1:] != IGNORED).sum())


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
        of_name = name.removesuffix(LENGTHS)
        if name in RESERVED or (of_name != name and of_name in batch):
            continue
        values = batch[name] if isinstance(batch[name], list) else np.asarray(batch[name])
        if f"{name}{LENGTHS}" in batch:
            values = _parts(np.asarray(batch[name]), batch[f"{name}{LENGTHS}"])
        for sample, value in zip(samples, values, strict=True):
            sample[name] = value
    if "pixel_values" in batch:
        owners = _parts(np.asarray(batch["tiles_per_image"]), batch["images_per_sample"])
        tiles = _parts(np.asarray(batch["pixel_values"]), [int(each.sum()) for each in owners])
        for sample, owned, pixels in zip(samples, owners, tiles, strict=True):
            sample["tiles_per_image"], sample["pixel_values"] = owned, pixels
    return samples


def _parts(whole: Array, lengths: Any) -> list[Array]:
    ends = np.cumsum([0, *np.asarray(lengths).tolist()]).tolist()
    return [whole[start:end] for start, end in pairwise(ends)]
