"""The loss of a large vocabulary, forward and backward: one shard's passes, and what others do.

Each leaves the gradients of hidden states and weight. The chunked loss computes gradients in the
forward, some tokens at once, as Liger kernels do ("Liger Kernel", 2024), here without fusing.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from counterpoise.sched.runtime.parts import MicrobatchData, StepData, TensorSpec
from counterpoise.sched.runtime.vocabulary.shard import Algorithm, Keep, VocabParallel
from counterpoise.sched.runtime.vocabulary.step import VocabularyPart

_CHUNKS = 8


@dataclass(frozen=True, slots=True)
class LossInputs:
    """A microbatch: hidden states (tokens, hidden), labels (tokens,), and the whole layer."""

    hidden: Tensor
    labels: Tensor
    layer: nn.Linear

    @property
    def weight(self) -> float:
        """Return what a token's loss counts in the mean."""
        return 1.0 / len(self.labels)


def make_inputs(
    words: int, hidden: int, tokens: int, device: torch.device, dtype: torch.dtype
) -> LossInputs:
    """Return random inputs, the same for the same sizes."""
    torch.manual_seed(0)
    layer = nn.Linear(hidden, words, bias=False, device=device, dtype=dtype)
    x = torch.randn(tokens, hidden, device=device).to(dtype)
    return LossInputs(x, torch.randint(words, (tokens,), device=device), layer)


def cross_entropy(inputs: LossInputs) -> Tensor:
    """Return dX of torch's linear and cross_entropy, in single precision where it counts."""
    x = inputs.hidden.detach().requires_grad_()
    inputs.layer.weight.grad = None
    torch.autograd.backward([F.cross_entropy(inputs.layer(x).float(), inputs.labels)])
    assert x.grad is not None
    return x.grad


def chunked(inputs: LossInputs) -> Tensor:
    """Return dX of a loss whose logits exist for an eighth of the tokens at once."""
    weight = inputs.layer.weight.detach()
    gradient, found = torch.zeros_like(weight), torch.empty_like(inputs.hidden)
    chunks = zip(
        *(part.chunk(_CHUNKS) for part in (inputs.hidden, inputs.labels, found)), strict=True
    )
    for x, labels, into in chunks:
        logits = F.linear(x, weight).float()
        logits.sub_(logits.logsumexp(1, keepdim=True)).exp_()
        logits[torch.arange(len(labels), device=x.device), labels] -= 1
        d = logits.mul_(inputs.weight).to(weight.dtype)
        torch.mm(d, weight, out=into)
        gradient.addmm_(d.t(), x)
    inputs.layer.weight.grad = gradient
    return found


def one_shard(
    inputs: LossInputs, algorithm: Algorithm, keep: Keep, ranks: int
) -> Callable[[], Tensor]:
    """Return a function that runs one rank's passes of a microbatch and returns its part of dX.

    The statistics of the other ranks are taken to be its own: the shapes, and so the times, are
    those of `ranks` ranks; communication is left out.
    """
    parallel = VocabParallel(inputs.layer, algorithm=algorithm, keep=keep)
    shard = parallel.shard(0, ranks)
    batch = MicrobatchData({"labels": inputs.labels}, inputs.weight, TensorSpec(()))
    part = VocabularyPart(parallel, shard, reports_loss=True)

    def run() -> Tensor:
        shard.zero_grad(set_to_none=True)
        part.begin_step(StepData((batch,), (True,)))
        statistics = part.run("S", 0, inputs.hidden)
        assert statistics is not None
        gathered = statistics.expand(ranks, *statistics.shape)
        sent = [part.run(kind, 0, gathered) for kind in ("CT" if algorithm == "alg2" else "T")]
        assert sent[0] is not None
        return sent[0]

    return run
