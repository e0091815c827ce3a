"""`check_equivalence`: compares a user's own model on every layout with single samples.

Theory of operation. Some steps are taken from the loader, their batches taken apart into samples,
and the loss of a step and its gradient computed four times: sample by sample, which is what is
meant; from padded and from packed batches of the same samples; and from the loader's own batches
with scale_loss, which is what will be trained. Which of them are far off says why, with two
experiments on one sample.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...balancer.planning.problem.layout import BASES, BUILT_IN, Base, Layout, as_layout, read_rules
from ...workers.collate.fields import Array, Batch
from ...workers.collate.images import COUNTS as IMAGE_COUNTS, GRIDS, IMAGE_FIELDS, TILES
from ...workers.collate.layouts import collate_samples
from ...workers.collate.tokens import list_derived
from ...workers.sources.labels import IGNORED
from ..models.kwargs import hf_kwargs
from ..models.proof import prove_packing
from ..step.info import Step, moved
from ..step.loss import scale_loss

TOLERANCE, TOLERANCE_HALF = 1e-4, 3e-2
DROPOUT = (
    "dropout, or another random choice: the loss of the same batch is another each time; the rest "
    "was compared in eval mode"
)
COUNTS = (
    "label tokens: the loader counts {} in the steps that were compared, and the batches have {}; "
    "loss.md says who counts them"
)
PACKED = (
    "packed samples: a sample's loss changes with those before it, or with its place; the model "
    "must use cu_seq_lens, or position_ids, which restart with every sample (Hugging Face: "
    "cp.hf_kwargs(batch, model))"
)
PADDING = (
    "padding: the loss changes with pad_id; the model must use attention_mask, and the loss must "
    "leave out labels -100, in a z-loss or auxiliary loss, too"
)
NOT_A_SUM = (
    "not a sum over label tokens: a mean, which scale_loss() would divide again (give "
    "reduction='sum'), or a term over tokens without a label, as a z-loss, an auxiliary loss or a "
    "label smoothing that counts them"
)
# Tokens that a row is filled up with where padding is tried.
FILLED = 8
# A loss, and its gradient with respect to each trained parameter, by name.
Outcome = tuple[float, dict[str, Tensor]]
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
    arguments = {"attention_mask": batch.get("attention_mask"), "use_cache": False}
    if "cu_seq_lens" in batch:
        arguments = hf_kwargs(batch, model)
    output = model(input_ids=batch["input_ids"], labels=batch["labels"], **arguments)
    count = int((batch["labels"][..., 1:] != IGNORED).sum())
    total: Tensor = output.loss * count if count else output.logits.sum() * 0.0
    return total


@dataclass(frozen=True, slots=True)
class Comparison:
    """A layout's distance from sample by sample: loss, gradient, the parameter farthest off."""

    layout: str
    loss: float
    gradient: float
    parameter: str
    differs: bool

    def __str__(self) -> str:
        """Return a row of a table."""
        verdict = f"differs, most in {self.parameter}" if self.differs else "same"
        return f"{self.layout:9} loss {self.loss:.1e}  gradient {self.gradient:.1e}  {verdict}"


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
        return self.packing != "refused" and not any(row.differs for row in self.comparisons)

    def __str__(self) -> str:
        """Return a table, and what differs."""
        title = f"against sample by sample, within {self.tolerance:g}:"
        lines = [title, *(f"  {comparison}" for comparison in self.comparisons)]
        packing = [f"  samples of a pack apart: {self.packing}"] if self.packing else []
        return "\n".join([*lines, *packing, *(f"  * {cause}" for cause in self.causes)])


def check_equivalence(
    model: nn.Module,
    loader: Any,
    *,
    loss: LossSum = hf_loss_sum,
    steps: int = 1,
    tolerance: float | None = None,
) -> Equivalence:
    """Compare a model's loss and gradient, sample by sample, with padded, packed and balanced.

    With the default loss short samples of its own are packed, too: a model that mixes them is not
    ok, whatever the loader's samples show.

    Args:
        model: A model, not wrapped by DDP or FSDP; mode, weights and `.grad` stay as they are.
        loader: A balanced DataLoader with layout "padded", "packed" or a Layout that has one of
            them as its base; its position stays where it is.
        loss: A function from (model, batch) to the sum of the losses of the batch's label tokens,
            for padded and packed batches; default that of Hugging Face causal models on text.
        steps: Number of steps that are compared; default 1.
        tolerance: Relative distance of loss and of each tensor's largest gradient; default 1e-4,
            and 3e-2 for 16-bit parameters.

    Raises ValueError for batches of another layout, for an epoch with no steps left, and for a
    model that raises for any packed batch.
    """
    arguments = getattr(loader, "_arguments", None)
    layout = None if arguments is None else as_layout(arguments.balance.layout)
    if layout is not None and layout.base is None:
        raise ValueError(
            f"layout {layout.name!r} has no base, and what it makes cannot be taken apart into "
            "samples with tokens: check a loader with cp.Layout(..., base='padded') or 'packed'"
        )
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
            return _compare(model, loss, taken, tolerance, layout)
        finally:
            model.train(was_training)


def _compare(
    model: nn.Module, loss: LossSum, steps: Sequence[Step[Any]], tolerance: float,
    own_layout: Layout | None,
) -> Equivalence:  # fmt: skip
    device = next(iter(model.parameters()), torch.zeros(())).device

    def compute(batch: Batch) -> Tensor:
        return loss(model, moved(batch, device))

    def total(
        base: Base, samples: Sequence[Any], length: int | None = None, pad_id: int = 0
    ) -> Tensor:
        """Return the loss of a batch, whose other fields are as in the loader's own layout."""
        layout = BUILT_IN[base]
        if own_layout is not None and own_layout.fields:
            layout = Layout(own_layout.name, own_layout.fields, base)
        layout = replace(layout, pad_id=pad_id)
        return compute(collate_samples(samples, layout, length=length))

    # an empty microbatch has no sample to compare, and weighs nothing
    filled = [
        [(batch, info) for batch, info in zip(s.microbatches, s.infos, strict=True) if info.samples]
        for s in steps
    ]
    # each microbatch's samples, and the label tokens of its step, by which losses are divided
    groups, label_tokens = list[tuple[list[Any], int]](), 0
    for step in filled:
        apart = [take_apart(batch, own_layout) for batch, _ in step]
        count = sum(int((s["labels"][1:] != IGNORED).sum()) for group in apart for s in group)
        groups += [(group, max(count, 1)) for group in apart]
        label_tokens += count
    singles = [([sample], count) for group, count in groups for sample in group]
    causes, packing = [], ""
    if loss is hf_loss_sum:
        proof = prove_packing(model)
        if proof.raises:
            raise ValueError(proof.reason)
        packing = proof.status
        causes += [proof.reason] if packing == "refused" else []
    single = singles[0][0]
    with torch.no_grad():
        if float(total("padded", single)) != float(total("padded", single)):
            model.eval()
            causes.append(DROPOUT)
    counted = sum(info.label_tokens for step in filled for _, info in step)

    def shares() -> Iterator[Tensor]:
        """Yield what a loop with scale_loss trains on, as parts of this process' mean."""
        for step in filled:
            # these are one process' microbatches: the step on all ranks may have more
            here = sum(info.label_tokens for _, info in step)
            for batch, info in step:
                if info.step_label_tokens:
                    part = scale_loss(compute(batch), info, reduction="sum")
                    yield part * (info.step_label_tokens / max(here, 1))

    def means(base: Base, groups: Sequence[tuple[list[Any], int]]) -> Iterator[Tensor]:
        return (total(base, samples) / count for samples, count in groups)

    alone = _outcome(model, means("padded", singles))
    by_layout = {base: means(base, groups) for base in BASES} | {"balanced": shares()}
    compared = [
        _distance(layout, alone, _outcome(model, losses), tolerance)
        for layout, losses in by_layout.items()
    ]
    differing = {comparison.layout for comparison in compared if comparison.differs}
    if differing and counted != label_tokens:
        causes.append(COUNTS.format(counted, label_tokens))
    if "padded" in differing:
        with torch.no_grad():
            is_padding = _sees_padding(partial(total, "padded"), single[0], tolerance)
        causes.append(PADDING if is_padding else NOT_A_SUM)
    elif "packed" in differing and packing != "refused":
        causes.append(PACKED)  # else no call of hf_kwargs keeps samples apart: it is not advised
    return Equivalence(tuple(compared), tuple(causes), tolerance, packing)


def _sees_padding(total: Callable[..., Tensor], sample: Any, tolerance: float) -> bool:
    """Return whether a sample's loss changes with its filling, and is 0 without any label."""
    unlabelled = {**sample, "labels": np.full(len(sample["input_ids"]), IGNORED)}
    longer = len(sample["input_ids"]) + FILLED
    least = tolerance * abs(float(total([sample])))
    by_fill = [float(total([sample], length=longer, pad_id=pad_id)) for pad_id in (0, 1)]
    return abs(by_fill[0] - by_fill[1]) > least and abs(float(total([unlabelled]))) <= least


def _outcome(model: nn.Module, shares: Iterable[Tensor]) -> Outcome:
    """Return the sum of some losses and its gradient; the model's own `.grad` stay as they are."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total, sums = 0.0, {name: torch.zeros_like(p) for name, p in trained.items()}
    for loss in shares:
        total += float(loss.detach())
        gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        for name, gradient in zip(trained, gradients, strict=True):
            if gradient is not None:
                sums[name] += gradient
    return total, sums


def _distance(layout: str, alone: Outcome, outcome: Outcome, tolerance: float) -> Comparison:
    """Return how far an outcome is from that of single samples.

    Relative to their loss, and to each tensor's largest value (or a thousandth of the largest of
    all, as what is zero but for rounding has no size of its own).
    """
    loss = abs(outcome[0] - alone[0]) / max(abs(alone[0]), 1e-12)
    largest = {name: float(g.abs().max()) for name, g in alone[1].items() if g.numel()}
    floor = max(largest.values(), default=0.0) / 1000 or 1.0
    off = {
        name: float((outcome[1][name] - alone[1][name]).abs().max()) / max(size, floor)
        for name, size in largest.items()
    }
    worst = max(off, key=lambda name: off[name], default="")
    gradient = off.get(worst, 0.0)
    differs = not (loss <= tolerance and gradient <= tolerance)  # NaN differs, too
    return Comparison(layout, loss, gradient, worst, differs)


# Taking batches apart into their samples again, by the layout that they were made by.
LENGTHS = "_lengths"


def take_apart(batch: Mapping[str, Any], layout: Layout | None = None) -> list[dict[str, Any]]:
    """Return the samples of a batch; ValueError for one that cannot be taken apart.

    layout: the one of the user's that it was made by; None: padded or packed. Each sample's first
    label is -100, as the layouts make it; samples that had no labels get some that are all -100.
    Dummy tiles and filling belong to no sample.
    """
    if "input_ids" not in batch or not ("cu_seq_lens" in batch or "attention_mask" in batch):
        raise ValueError(
            "only batches of layout 'padded' or 'packed', or of one with such a base, can be taken "
            f"apart, and this one has {', '.join(map(str, batch))[:200]}: give "
            "Balance(layout='packed')"
        )
    layout = layout or BUILT_IN["packed" if "cu_seq_lens" in batch else "padded"]
    rules, derived = read_rules(layout), list_derived(layout)
    places = _places(batch)
    samples: list[dict[str, Any]] = [{} for _ in places]
    for name, whole in batch.items():
        of_name = name.removesuffix(LENGTHS)
        # what the layout has made follows from the samples, and is not theirs
        if name in derived or (of_name != name and of_name in batch):
            continue
        # images without a rule of the user's go with their owners, below
        if name in IMAGE_FIELDS and name not in rules:
            continue
        how = rules[name].how if name in rules else ""
        lengths = batch.get(f"{name}{LENGTHS}")
        values: Any = whole
        if how == "tokens":
            array = np.asarray(whole)
            values = [array[..., row, span] for row, span in places]
        elif not isinstance(whole, list):
            values = np.asarray(whole)
            # filled up: the sizes of all axes say what was there; else laid one after another
            if lengths is not None and how == "pad":
                sizes = np.asarray(lengths).reshape(len(samples), -1).tolist()
                pairs = zip(values, sizes, strict=True)
                values = [filled[tuple(map(slice, size))] for filled, size in pairs]
            elif lengths is not None:
                values = _parts(values, lengths)
        for sample, value in zip(samples, values, strict=True):
            sample[name] = value
    # tiles, patches with their grids, or images
    for pixels, grid in GRIDS.items() if not IMAGE_FIELDS & rules.keys() else ():
        owner = TILES if pixels == "pixel_values" and TILES in batch else grid
        counts = np.asarray(batch.get(IMAGE_COUNTS[pixels], ()))
        parts = {owner: counts.tolist(), pixels: counts.tolist()}
        if owner in batch:
            owned = _parts(np.asarray(batch[owner]), counts)
            parts[pixels] = [int((o.prod(axis=1) if o.ndim > 1 else o).sum()) for o in owned]
        for name in [field for field in parts if field in batch]:
            values = _parts(np.asarray(batch[name]), parts[name])
            for sample, value in zip(samples, values, strict=True):
                sample[name] = value
    return samples


def _places(batch: Mapping[str, Any]) -> list[tuple[int, slice]]:
    """Return the row and the place in it of each sample's tokens, without those of filling."""
    if "cu_seq_lens" in batch:
        # packed: one row has all samples, each from where it begins
        lengths = np.diff(np.asarray(batch["cu_seq_lens"])).tolist()
        begins = np.asarray(batch.get("cu_seq_lens_padded", batch["cu_seq_lens"])).tolist()
        places = [(0, slice(b, b + n)) for b, n in zip(begins, lengths, strict=False)]
    else:
        lengths = np.asarray(batch["attention_mask"]).sum(axis=1).tolist()
        places = [(row, slice(0, length)) for row, length in enumerate(lengths)]
    return places[: len(places) - batch.get("pad_sequences", 0)]


def _parts(whole: Array, lengths: Any) -> list[Array]:
    ends = np.cumsum([0, *np.asarray(lengths).tolist()]).tolist()
    return [whole[start:end] for start, end in pairwise(ends)]
