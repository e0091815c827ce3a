"""What the processes of the pool run in bf16: a pipeline beside one process in bf16 and in fp32."""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from counterpoise.sched import schedule
from counterpoise.sched.runtime import HiddenStates, Pipeline, StageOptions
from tests.sched.runtime import models
from tests.sched.runtime.cases import Case, loader_step, make_pipe, mean_loss, parameter_pairs
from tests.sched.runtime.models import Batches, copies, freeze, make_stages
from tests.sched.runtime.pool import WORLD, make_mesh

# With fewer values in a tensor, chance decides whose error is larger.
HIDDEN, WORDS = 64, 200


def make_batches(count: int, equal: bool, seed: int) -> Batches:
    draw = torch.Generator().manual_seed(seed)
    sizes = [40 if equal else int(n) for n in torch.randint(20, 60, (count,), generator=draw)]
    ids, labels = ([torch.randint(WORDS, (n,), generator=draw) for n in sizes] for _ in range(2))
    return Batches(ids, labels)


def run_low(rank: int, case: Case, autocast: bool) -> dict[str, float]:
    """Return the error of the loss, and the largest L2 errors by those of one process in bf16.

    `autocast`: whether weights are in single precision, and torch.autocast computes in bf16.
    """
    before = models.HIDDEN, models.WORDS
    models.HIDDEN, models.WORDS = HIDDEN, WORDS
    try:
        return _run_low(case, autocast)
    finally:
        models.HIDDEN, models.WORDS = before


def _run_low(case: Case, autocast: bool) -> dict[str, float]:
    mesh = make_mesh(case.ranks)
    count = 2 * case.ranks
    program = schedule(case.name, ranks=case.ranks, microbatches=count)
    low = torch.float32 if autocast else torch.bfloat16
    stages = [stage.to(low) for stage in make_stages(program.stages)]
    freeze(stages, case.frozen)
    one, exact = copies(stages), [stage.float() for stage in copies(stages)]
    run = StageOptions(autocast=torch.bfloat16 if autocast else None)
    hidden = HiddenStates(HIDDEN, dtype=low)
    pipe, mine = make_pipe(mesh, case, program, stages, hidden=hidden, run=run)
    every = [make_batches(count, case.equal, seed) for seed in range(WORLD // case.ranks)]
    total = sum(len(ids) for batches in every for ids in batches.ids)
    try:
        batches = every[mesh["dp"].get_local_rank()]
        loss = float(pipe.step(loader_step(batches, total)).loss)
        train(one, every, total, autocast)
        wanted = train(exact, every, total, False)
        ratios = _ratios(pipe, mine, one, exact)
    finally:
        pipe.close()
    return {"loss": abs(loss - wanted) / wanted, **ratios}


def train(stages: Sequence[nn.Module], every: list[Batches], total: int, autocast: bool) -> float:
    """Leave the gradients of one process on the stages, and return the loss."""
    found = 0.0
    for batches in every:
        for ids, labels in zip(batches.ids, batches.labels, strict=True):
            with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
                logits = nn.Sequential(*stages)(ids)
                loss = mean_loss(logits, labels) / total
            loss.backward()
            found += loss.item()
    return found


def _ratios(
    pipe: Pipeline, mine: dict[int, nn.Module], one: list[nn.Module], exact: list[nn.Module]
) -> dict[str, float]:
    """The largest ratios of gradients' errors, and of updated weights', each by L2 norms."""
    worst = {"gradients": 0.0, "weights": 0.0}
    ours, theirs = (parameter_pairs(pipe, mine, stages) for stages in (one, exact))
    for (a, rows, b, others), (_, _, c, _) in zip(ours, theirs, strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert c.grad is not None
        grads = a.grad[rows], b.grad[others], c.grad[others]
        after = [
            (weight.detach() - 0.1 * grad.to(weight.dtype))[which]
            for weight, grad, which in ((a, a.grad, rows), (b, b.grad, others), (c, c.grad, others))
        ]
        worst["gradients"] = max(worst["gradients"], _ratio(*grads))
        worst["weights"] = max(worst["weights"], _ratio(*after))
    return worst


def _ratio(ours: Tensor, one: Tensor, exact: Tensor) -> float:
    error = float((one.float() - exact).norm())
    return float((ours.float() - exact).norm()) / error
