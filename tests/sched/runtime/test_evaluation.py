"""Evaluating runs the forward passes of the schedule, and changes nothing."""

from typing import Any

import pytest
import torch
from torch import nn

from counterpoise.sched import schedule
from counterpoise.sched.runtime import Pipeline, VocabParallel
from tests.sched.runtime.cases import ALGORITHMS, gradient, loader_step, mean_loss, relative
from tests.sched.runtime.models import HIDDEN, copies, make_batches, make_stages
from tests.sched.runtime.pool import WORLD, make_mesh

COUNT = 8


def evaluate(_rank: int, name: str, keep: Any) -> tuple[float, float, list[str]]:
    """Return the error of the loss before and after a step of training, and the last passes."""
    mesh = make_mesh(WORLD)
    program = schedule(name, ranks=WORLD, microbatches=COUNT)
    stages = [stage.float() for stage in make_stages(program.stages)]
    whole = nn.Sequential(*copies(stages))
    made: dict[str, Any] = {"loss": mean_loss}
    if any(item.kind in "SL" for row in program.ranks for item in row):
        *body, head = stages[-1].children()
        assert isinstance(head, nn.Linear)
        algorithm = ALGORITHMS[name.rpartition("-")[2]]
        made = {"vocabulary": VocabParallel(head, algorithm=algorithm, keep=keep)}
        stages[-1] = nn.Sequential(*body)
    mine = {s: stages[s] for s in program.stages_of(mesh["pp"].get_local_rank())}
    pipe = Pipeline(mesh, schedule=name, stages=mine, hidden=HIDDEN, deadline_s=40, **made)
    errors = []
    try:
        for seed in range(2):
            batches = make_batches(COUNT, equal=False, seed=seed)
            total = sum(len(ids) for ids in batches.ids)
            before = [None if p.grad is None else p.grad.clone() for p in pipe.parameters()]
            loss = pipe.evaluate(loader_step(batches, total)).loss
            zero = torch.zeros(())
            with torch.no_grad():
                pairs = zip(batches.ids, batches.labels, strict=True)
                expected = sum(
                    (mean_loss(whole(ids), labels) / total for ids, labels in pairs), zero
                )
            errors.append(relative(loss, expected))
            for kept, parameter in zip(before, pipe.parameters(), strict=True):
                assert (kept is None) == (parameter.grad is None) == (seed == 0)
                assert kept is None or torch.equal(kept, gradient(parameter))
            row = pipe.timeline().ranks[pipe.rank]
            pipe.step(loader_step(batches, total))
            whole_step(whole, batches, total)
            for part in (*pipe.modules(), whole):
                with torch.no_grad():
                    for parameter in part.parameters():
                        parameter.sub_(gradient(parameter), alpha=0.1)
    finally:
        pipe.close()
    return errors[0], errors[1], [slot.what.kind for slot in row]


def whole_step(whole: nn.Module, batches, total: int) -> None:
    """Leave the gradients of one process on the model."""
    for ids, labels in zip(batches.ids, batches.labels, strict=True):
        (mean_loss(whole(ids), labels) / total).backward()


@pytest.mark.parametrize(
    ("name", "keep"),
    [("zbv", ""), ("1f1b-alg2", "logits"), ("v-half-alg1", "nothing"), ("1f1b-naive", "logits")],
)
def test_the_loss_is_that_of_one_process_and_gradients_stay(pool, name, keep) -> None:
    for before, after, kinds in pool.run(evaluate, name, keep):
        assert max(before, after) <= 1e-5
        assert not {"B", "I", "W", "C", "IB"} & set(kinds)
        assert "F" in kinds
