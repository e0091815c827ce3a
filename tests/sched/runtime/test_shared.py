"""Parameters that several stages or ranks have count as the one parameter that they are."""

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from counterpoise.sched import schedule
from counterpoise.sched.planners.stage_split import make_split
from counterpoise.sched.runtime import Pipeline, StageModules, split
from counterpoise.sched.runtime.stage.splitting import with_ties
from tests.sched.runtime.cases import gradient, loader_step, mean_loss, reference_loss, relative
from tests.sched.runtime.models import HIDDEN, WORDS, Block, make_batches
from tests.sched.runtime.pool import WORLD, make_mesh

COUNT = 8


class Scaled(nn.Module):
    """A block, and a scale of which every stage has a copy."""

    def __init__(self, scale: nn.Parameter) -> None:
        super().__init__()
        self.block, self.scale = Block(), scale

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x) * self.scale


def tied_stages(count: int) -> list[nn.Sequential]:
    """Stages of one process: the head's weight is the embedding's, and all have one scale."""
    torch.manual_seed(3)
    scale = nn.Parameter(1 + torch.rand(HIDDEN))
    embedding, head = nn.Embedding(WORDS, HIDDEN), nn.Linear(HIDDEN, WORDS, bias=False)
    head.weight = embedding.weight
    stages = [[Scaled(scale)] for _ in range(count)]
    return [
        nn.Sequential(*([embedding] if not n else []), *stage, *([head] if n == count - 1 else []))
        for n, stage in enumerate(stages)
    ]


def scaled(stage: nn.Module) -> Scaled:
    return next(module for module in stage.children() if isinstance(module, Scaled))


def copies_on_rank(
    stages: dict[int, nn.Sequential], last: int
) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield a rank's parameters that others have, too."""
    for number, stage in stages.items():
        yield "scale", scaled(stage).scale
        if number == 0:
            yield "words", next(stage[0].parameters())
        if number == last:
            yield "words", next(stage[-1].parameters())


def train_tied(rank: int, name: str, ranks: int, *, by_split: bool = False) -> float:
    """Return the largest relative error of losses, gradients, norms and weights in two steps.

    `by_split`: whether split() cuts the stages, and finds what they have in common.
    """
    mesh = make_mesh(ranks)
    own, replica = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    program = schedule(name, ranks=ranks, microbatches=COUNT)
    model = tied_stages(program.stages)
    # As a rank would have them: copies of its stages alone, tied among themselves.
    placed = program.stages_of(own)
    shared: dict[str, nn.Parameter] = {}
    if by_split:
        plan = make_split(tuple(len(stage) for stage in model))
        stages = split(nn.Sequential(*(m for stage in model for m in stage)), plan, layers="")
        mine: dict[int, Any] = copy.deepcopy({stage: stages[stage] for stage in placed})
    else:
        mine = copy.deepcopy({stage: model[stage] for stage in placed})
        shared = dict(copies_on_rank(mine, program.stages - 1))
    # A V has the first and the last stage on one rank: nobody shares the words with it.
    if len({program.placement[0], program.placement[-1]}) == 1:
        shared.pop("words", None)
    if own:
        # Another start than the first rank's, whose values count.
        for parameter in shared.values() or with_ties({}, mine, program.placement).values():
            nn.init.zeros_(parameter)
    pipe = Pipeline(
        mesh, schedule=name, stages=StageModules(mine, shared=shared), hidden=HIDDEN,
        loss=mean_loss, deadline_s=40,
    )  # fmt: skip
    whole = nn.Sequential(*model)
    optimizers = [torch.optim.SGD(p, lr=0.1) for p in (pipe.parameters(), whole.parameters())]
    worst = 0.0
    try:
        for step in range(2):
            every = [
                make_batches(COUNT, equal=False, seed=10 * step + r) for r in range(WORLD // ranks)
            ]
            total = sum(len(ids) for batches in every for ids in batches.ids)
            loss = pipe.step(loader_step(every[replica], total)).loss
            expected = reference_loss(whole, every, total)
            pairs = [
                (ours, theirs)
                for number, stage in mine.items()
                for ours, theirs in zip(stage.parameters(), model[number].parameters(), strict=True)
            ]
            errors = [relative(gradient(a), gradient(b)) for a, b in pairs]
            norm = pipe.clip_grad_norm_(0.5)
            errors.append(relative(norm, nn.utils.clip_grad_norm_(whole.parameters(), 0.5)))
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            errors += [relative(a.detach(), b.detach()) for a, b in pairs]
            worst = max(worst, relative(loss, expected), *errors)
        worst = max(worst, *adds_up(pipe, loader_step(every[replica], total)))
    finally:
        pipe.close()
    return worst


def adds_up(pipe: Pipeline, step) -> list[float]:
    """Return how far the gradients of a step that is run twice are from twice those of one."""
    pipe.step(step)
    once = [gradient(p).clone() for p in pipe.parameters()]
    pipe.step(step)
    return [relative(gradient(p), 2 * g) for p, g in zip(pipe.parameters(), once, strict=True)]


@pytest.mark.parametrize(("name", "ranks"), [("1f1b", 4), ("zbv", 2), ("interleaved", 2)])
def test_tied_and_replicated_parameters_train_as_one(pool, name, ranks) -> None:
    assert max(pool.run(train_tied, name, ranks)) <= 1e-5


@pytest.mark.parametrize(("name", "ranks"), [("zbv", 2), ("1f1b", 4)])
def test_ties_of_a_split_model_need_not_be_named(pool, name, ranks) -> None:
    assert max(pool.run(partial(train_tied, by_split=True), name, ranks)) <= 1e-5


def refuse(rank: int, what: str) -> str:
    """Return the error for shared parameters that do not fit together."""
    stages = tied_stages(WORLD)
    shared: dict[str, nn.Parameter] = {}
    if what == "alone" and rank == 1:
        shared = {"scale": scaled(stages[1]).scale}
    if what == "elsewhere":
        shared = {"scale": nn.Parameter(torch.zeros(1))}
    if what == "unlike":
        block = scaled(stages[rank]).block
        shared = {"bias": block.up.bias if rank else block.down.bias}
    with pytest.raises(ValueError, match="shared parameter") as found:
        Pipeline(
            make_mesh(WORLD), schedule="1f1b", hidden=HIDDEN, loss=mean_loss,
            stages=StageModules({rank: stages[rank]}, shared=shared),
        )  # fmt: skip
    return str(found.value)


def test_copies_that_do_not_fit_are_refused_on_every_rank(pool) -> None:
    for text in pool.run(refuse, "alone"):
        assert "only rank 1 gives the shared parameter 'scale'" in text
    for text in pool.run(refuse, "elsewhere"):
        assert "in no stage of this rank" in text
    for text in pool.run(refuse, "unlike"):
        assert f"shape ({HIDDEN},) on rank 0" in text
        assert f"shape ({2 * HIDDEN},) on rank 3" in text
