"""The layers as one process computes them, with autograd: what shards are compared with."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from counterpoise.sched.runtime.parts import MicrobatchData, StepData, TensorSpec
from counterpoise.sched.runtime.vocabulary.loss import LossOptions
from counterpoise.sched.runtime.vocabulary.shard import VocabParallel, VocabularyShard
from counterpoise.sched.runtime.vocabulary.step import VocabularyPart


@dataclass(frozen=True)
class Wanted:
    """Losses of the microbatches, and gradients: of X, the weight, the bias."""

    losses: list[Tensor]
    inputs: list[Tensor | None]
    weight: Tensor | None
    bias: Tensor | None


def labelled(labels: Tensor, weight: float, words: Tensor | None = None) -> MicrobatchData:
    """A microbatch with labels, and the words of an embedding that is divided."""
    fields = {"labels": labels} if words is None else {"labels": labels, "input_ids": words}
    return MicrobatchData(fields, weight, TensorSpec(()))


def begun(
    shard: VocabularyShard,
    parallel: VocabParallel,
    batches: Sequence[MicrobatchData],
    *,
    input_gradient: bool = True,
    autocast: torch.dtype | None = None,
) -> VocabularyPart:
    """The passes of a shard in a step of these microbatches."""
    part = VocabularyPart(parallel, shard, reports_loss=True, autocast=autocast)
    part.begin_step(StepData(tuple(batches), (input_gradient,)))
    return part


def loss_of(logits: Tensor, batch: MicrobatchData, options: LossOptions) -> Tensor:
    """The loss by torch's cross entropy, with softcap and z-loss by their formulas."""
    if options.softcap is not None:
        logits = options.softcap * torch.tanh(logits / options.softcap)
    labels = batch.fields["labels"].flatten()
    logits = logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))
    entropy = F.cross_entropy(
        logits,
        labels.long(),
        ignore_index=options.ignore_index,
        label_smoothing=options.label_smoothing,
        reduction="sum",
    )
    counted = (labels != options.ignore_index).to(logits.dtype)
    squares = (logits.logsumexp(1).square() * counted).sum()
    return (entropy + options.z_loss * squares) * batch.weight


def reference(
    head: nn.Linear,
    hidden: Sequence[Tensor],
    batches: Sequence[MicrobatchData],
    options: LossOptions,
    dtype: torch.dtype = torch.float64,
) -> Wanted:
    """The losses and gradients of microbatches, in one process and `dtype`."""
    weight = head.weight.detach().to(dtype).requires_grad_()
    bias = None if head.bias is None else head.bias.detach().to(dtype).requires_grad_()
    losses, inputs = [], []
    for x, batch in zip(hidden, batches, strict=True):
        x = x.detach().to(dtype).requires_grad_()
        loss = loss_of(F.linear(x, weight, bias), batch, options)
        loss.backward()
        losses.append(loss.detach())
        inputs.append(x.grad)
    return Wanted(losses, inputs, weight.grad, None if bias is None else bias.grad)


def error(found: Tensor | None, wanted: Tensor | None) -> float:
    """The largest difference relative to the largest wanted value; 0 for two empty tensors."""
    assert found is not None
    assert wanted is not None
    assert found.shape == wanted.shape
    if not wanted.numel():
        return 0.0
    largest = wanted.abs().max().item()
    return (found.to(wanted.dtype) - wanted).abs().max().item() / (largest or 1.0)


def l2_error(found: Tensor | None, wanted: Tensor | None) -> float:
    """The L2 norm of the difference relative to the wanted tensor's."""
    assert found is not None
    assert wanted is not None
    return ((found.to(wanted.dtype) - wanted).norm() / wanted.norm()).item()


def same(found: Tensor | None, wanted: Tensor | None) -> bool:
    """Whether two tensors are there and have the same bits."""
    return found is not None and wanted is not None and torch.equal(found, wanted)
