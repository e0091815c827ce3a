"""`check_equivalence`: compares a user's own model on every layout with single samples.

Theory of operation. Some steps are taken from the loader, their batches taken apart into samples,
and the loss of a step and its gradient computed four times: sample by sample, which is what is
meant; from padded and from packed batches of the same samples; and from the loader's own batches
with scale_loss, which is what will be trained. Where one of them is far off, experiments name why.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...balancer.planning.problem.layout import (
    BASES,
    BUILT_IN,
    Base,
    Layout,
    as_layout,
    rules_of,
)
from ...workers.collate.fields import Batch
from ...workers.collate.layouts import collate_samples
from ...workers.sources.labels import IGNORED
from ..models.kwargs import hf_kwargs
from ..models.proof import prove_packing
from ..step.info import Step, StepInfo, moved
from ..step.loss import scale_loss
from .apart import samples_of
from .causes import BORDERS, Collate, find_causes

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

    packing: what short samples say of the model with cp.hf_kwargs(batch, model): "exact",
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
    layouts: Sequence[Base] = BASES,
    tolerance: float | None = None,
) -> Equivalence:
    """Compare a model's loss and gradient, sample by sample, with padded, packed and balanced.

    model: not wrapped by DDP or FSDP; its mode, weights and `.grad` stay as they are. loader: a
    balanced DataLoader with layout "padded", "packed" or a Layout that has one of them as its base,
    whose own fields both then have; its position stays where it is. loss: a function from (model,
    batch) to the sum of the losses of the batch's label tokens, for batches of every one of
    `layouts`; the default is for Hugging Face causal models on text. steps: how many are compared.
    tolerance: relative, of loss and each tensor's largest gradient; by default 1e-4, and 3e-2 for
    16-bit parameters. With the default
    loss, short samples of its own are packed too: a model that mixes them is not ok, whatever
    the loader's samples show.

    Raises ValueError for batches of another layout, for an epoch with no steps left, and for a
    model that raises for any packed batch.
    """
    own = _layout_of(loader)
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
            return _compare(model, loss, taken, layouts, tolerance, own)
        finally:
            model.train(was_training)


def _layout_of(loader: Any) -> Layout | None:
    """Return the layout that a loader was given, None where it is not known."""
    given = getattr(loader, "_given", None)
    layout = None if given is None else as_layout(given.balance.layout)
    if layout is not None and layout.base is None:
        raise ValueError(
            f"layout {layout.name!r} has no base, and what it makes cannot be taken apart into "
            "samples with tokens: check a loader with cp.Layout(..., base='padded') or 'packed'"
        )
    return layout


def _collate(own: Layout | None, base: Base, samples: Sequence[Any], pad_id: int = 0) -> Batch:
    """Return a padded or packed batch, whose other fields are as in the loader's own layout."""
    layout = BUILT_IN[base]
    if own is not None and own.fields:
        layout = Layout(own.name, own.fields, base)
    return collate_samples(samples, layout, pad_id=pad_id)


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
    layouts: Sequence[Base],
    tolerance: float,
    own: Layout | None,
) -> Equivalence:
    collate: Collate = partial(_collate, own)
    device = next(iter(model.parameters()), torch.zeros(())).device

    def compute(batch: Batch) -> Tensor:
        return loss(model, moved(batch, device))

    # an empty microbatch has no sample to compare, and weighs nothing
    filled = [
        [(batch, info) for batch, info in zip(s.microbatches, s.infos, strict=True) if info.samples]
        for s in steps
    ]
    groups = [[samples_of(batch, own) for batch, _ in step] for step in filled]
    together = [group for step in groups for group in step]
    samples = [sample for group in together for sample in group]
    causes = []
    proof = None
    if loss is hf_loss_sum and "packed" in layouts:
        proof = prove_packing(model)
        if proof.raises:
            raise ValueError(proof.reason)
        causes += [proof.reason] if proof.status == "refused" else []
    first = collate("padded", samples[:1])
    if float(compute(first).detach()) != float(compute(first).detach()):
        model.eval()
        causes.append(DROPOUT)
    alone = outcome(model, (compute(collate("padded", [sample])) for sample in samples))
    compared = []
    for layout in layouts:
        batches = (collate(layout, group) for group in together)
        found = outcome(model, map(compute, batches))
        compared.append(alone.compare(layout, found, tolerance))
    # what a loop with scale_loss trains on, and the means over the same samples
    means = outcome(
        model,
        (
            compute(collate("padded", [sample])) / max(sum(map(_count, chain(*inside))), 1)
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
            total = lambda batch: float(compute(batch))  # noqa: E731
            rules = rules_of(own or BUILT_IN["padded"])
            per_token = [name for name, rule in rules.items() if rule.how == "tokens"]
            causes += find_causes(total, samples, tolerance, plain, collate, per_token)
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
