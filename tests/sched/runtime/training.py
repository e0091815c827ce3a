"""The loop of all tests that train a pipeline with encoders or a generator beside one process."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import nn

from counterpoise.sched.runtime import Pipeline
from tests.sched.runtime.cases import relative
from tests.sched.runtime.encoders.models import Sample

# The microbatches of every replica.
Every = list[list[Sample]]


class Errors(Protocol):
    """Returns the largest relative errors of what a rank has, of gradients or of weights."""

    def __call__(self, *, gradients: bool) -> dict[str, float]: ...


def train_beside(
    pipe: Pipeline,
    theirs: Iterable[nn.Parameter],
    steps: int,
    *,
    samples: Callable[[int], Every],
    given: Callable[[Every, int], Any],
    reference: Callable[[list[Sample], int], float],
    errors: Errors,
    check: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Train both ways; return the largest relative errors of all steps.

    `theirs`: the parameters of the one process. `samples`: from a seed; `given`: what this rank
    gets of them, and of the number of their tokens. `reference`: the loss of one replica's
    microbatches, whose gradients it leaves. `check`: called after each step. With several steps
    the loss of forward passes alone is compared, too.
    """
    trained = [p for p in theirs if p.requires_grad]
    ours = [p for p in pipe.parameters() if p.requires_grad]
    optimizers = [torch.optim.SGD(each, lr=0.1) for each in (ours, trained) if each]
    worst: dict[str, float] = {}
    for step in range(steps):
        every, total = _with_total(samples(10 * step))
        result = pipe.step(given(every, total))
        check()
        wanted = sum(reference(own, total) for own in every)
        found = {"loss": abs(float(result.loss) - wanted) / wanted} | errors(gradients=True)
        norm = nn.utils.clip_grad_norm_(trained, 0.5)
        found["norm"] = float(relative(pipe.clip_grad_norm_(0.5), norm))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        found |= {f"{name} after": error for name, error in errors(gradients=False).items()}
        worst = {name: max(worst.get(name, 0.0), error) for name, error in found.items()}
    if steps > 1:
        every, total = _with_total(samples(70))
        wanted = sum(reference(own, total) for own in every)
        worst["evaluation"] = abs(float(pipe.evaluate(given(every, total)).loss) - wanted) / wanted
    return worst


def _with_total(every: Every) -> tuple[Every, int]:
    return every, sum(len(sample.ids) for own in every for sample in own)
