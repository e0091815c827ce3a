"""What the processes of the pool run: a pipeline of small stages beside a one-process reference."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from counterpoise.sched import Program, schedule
from counterpoise.sched.runtime import Pipeline, StageOptions, StepLoss, VocabParallel
from counterpoise.sched.runtime.vocabulary.shard import VocabularyShard
from tests.sched.runtime.models import (
    HIDDEN,
    Block,
    copies,
    freeze,
    make_batches,
    make_stages,
    total_loss,
)
from tests.sched.runtime.pool import WORLD, make_mesh

# By the end of a schedule's name. Interlaced 1F1B stops all ranks for the passes of Algorithm 1.
ALGORITHMS: dict[str, Any] = {
    "alg1": "alg1", "alg2": "alg2", "naive": "naive", "interlaced": "alg1",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One setting of the matrix; `ranks` pipeline ranks, the rest are replicas."""

    name: str
    ranks: int
    frozen: str = "nothing frozen"
    equal: bool = True
    microbatches: int = 0
    options: tuple[tuple[str, object], ...] = ()
    sharded: bool = False
    # Whether FSDP2 divides the blocks alone, not what else a stage has.
    blocks: bool = False
    steps: int = 2
    # Whether the second step's gradients are added to the first one's, with evaluation between.
    adds_up: bool = False


@dataclass(frozen=True)
class Found:
    """What a rank found: largest relative errors against one process, in single precision."""

    loss: float
    gradients: float
    weights: float
    norm: float
    passes: tuple[str, ...]


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), labels, reduction="sum")


def loader_step(batches, total: int) -> SimpleNamespace:
    """A step as a loader gives it."""
    fields = zip(batches.ids, batches.labels, strict=True)
    return SimpleNamespace(
        microbatches=[{"input_ids": ids, "labels": labels} for ids, labels in fields],
        infos=[
            SimpleNamespace(step_label_tokens=total, step_samples=1, costs={"tokens": len(ids)})
            for ids in batches.ids
        ],
    )


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def relative(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / (theirs.abs().max() + 1e-12))


def worst_of(pairs: Any, *, gradients: bool) -> float:
    """Return the largest error of what `parameter_pairs` gives."""
    return max(
        (
            relative(whole(a.grad if gradients else a)[r], (b.grad if gradients else b)[q])
            for a, r, b, q in pairs
        ),
        default=0.0,
    )


def errors_of(
    pipe: Pipeline,
    mine: dict[int, nn.Module],
    stages: list[nn.Module],
    beside: Iterable[tuple[nn.Module, nn.Module]],
    *,
    gradients: bool,
) -> dict[str, float]:
    """Return the largest errors of what this rank has: of its stages, and of modules beside them.

    `stages`: one process'. `beside`: pairs of ours and one process'.
    """
    pairs = parameter_pairs(pipe, mine, stages, gradients=gradients) if mine else []
    own, errors = {id(p) for p in pipe.parameters()}, [0.0]
    for ours, theirs in beside:
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            if id(p) not in own:
                continue
            if not gradients:
                errors.append(relative(whole(p.detach()), q.detach()))
            elif q.grad is None:
                assert p.grad is None
            else:
                errors.append(relative(whole(gradient(p)), gradient(q)))
    return {"stages": worst_of(pairs, gradients=gradients), "beside": max(errors)}


def run_case(rank: int, case: Case) -> Found:
    """Train some steps both ways and compare; every process computes the reference for itself."""
    mesh = make_mesh(case.ranks)
    replica = mesh["dp"].get_local_rank()
    count = case.microbatches or 2 * case.ranks
    program = schedule(case.name, ranks=case.ranks, microbatches=count)
    stages = [stage.float() for stage in make_stages(program.stages)]
    freeze(stages, case.frozen)
    reference = copies(stages)
    pipe, mine = make_pipe(mesh, case, program, stages)
    try:
        return _compare(pipe, mine, reference, case, replica, count)
    finally:
        pipe.close()


def make_pipe(
    mesh: DeviceMesh, case: Case, program: Program, stages: list[nn.Module], **more: Any
) -> tuple[Pipeline, dict[int, nn.Module]]:
    """Return a pipeline of the stages, and this rank's; the head may leave the last for shards."""
    own = mesh["pp"].get_local_rank()
    made = loss_or_vocabulary(program, stages, case.name, mean_loss)
    mine = {s: stages[s] for s in program.stages_of(own)}
    if case.sharded:
        stages = [*mine.values()]
        every = [part for module in stages for part in module.modules()]
        blocks = [part for part in every if isinstance(part, Block)]
        for module in blocks if case.blocks else stages:
            fully_shard(module, mesh=mesh["dp"], reshard_after_forward=False)
    run: Any = StageOptions(**dict(case.options))  # type: ignore[arg-type]
    settings = {"hidden": HIDDEN, "run": run} | made | more
    return Pipeline(mesh, schedule=case.name, stages=mine, deadline_s=40, **settings), mine


def loss_or_vocabulary(
    program: Program, stages: list[nn.Module], name: str, loss: Any = total_loss
) -> dict[str, Any]:
    """Return what a pipeline is given of the two; the head leaves the last stage for shards."""
    if not any(item.kind in "SL" for row in program.ranks for item in row):
        return {"loss": loss}
    *body, head = stages[-1].children()
    assert isinstance(head, nn.Linear)
    stages[-1] = nn.Sequential(*body)
    return {"vocabulary": VocabParallel(head, algorithm=ALGORITHMS[name.rpartition("-")[2]])}


class Shift(nn.Module):
    """A stage that adds one number: the gradient of its input is that of its output, unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.amount = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.amount


def send_spread_out_gradients(rank: int, counts: tuple[int, ...]) -> float:
    """Return the gradient of a rank's stage where every gradient is one number, spread out.

    `counts`: the tokens of the microbatches.
    """
    stage = Shift()
    pipe = Pipeline(
        make_mesh(WORLD), schedule="1f1b", stages={rank: stage}, hidden=HIDDEN,
        run=StageOptions(inputs=("x",)),
        loss=StepLoss(lambda output: output.sum(), labels=(), weigh=lambda _: 1.0), deadline_s=40,
    )  # fmt: skip
    pipe.step(
        SimpleNamespace(
            microbatches=[{"x": torch.zeros(count, HIDDEN)} for count in counts],
            infos=[SimpleNamespace(costs={"tokens": count}) for count in counts],
        )
    )
    pipe.close()
    return gradient(stage.amount).item()


def refuse_ddp(rank: int) -> str:
    """Return the error for a stage in DDP."""
    mesh = make_mesh(WORLD)
    stage = DistributedDataParallel(nn.Linear(HIDDEN, HIDDEN))
    with pytest.raises(ValueError, match="DistributedDataParallel") as found:
        Pipeline(mesh, schedule="1f1b", stages={rank: stage}, hidden=HIDDEN, loss=mean_loss)
    return str(found.value)


def refuse_unlike_replicas(rank: int) -> str:
    """Return the error where one replica has frozen a stage that the other one trains."""
    mesh = make_mesh(2)
    own, replica = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    stage = make_stages(2)[own]
    stage.requires_grad_(not (own == 1 and replica == 1))
    with pytest.raises(ValueError, match="replicas do not train") as found:
        Pipeline(mesh, schedule="1f1b", stages={own: stage}, hidden=HIDDEN, loss=mean_loss)
    return str(found.value)


def _compare(pipe, mine, reference, case: Case, replica: int, count: int) -> Found:
    model = nn.Sequential(*reference)
    both = [p for p in model.parameters() if p.requires_grad]
    trained = [p for module in pipe.modules() for p in module.parameters() if p.requires_grad]
    optimizers = [torch.optim.SGD(p, lr=0.1) for p in (trained, both) if p]
    found = Found(0.0, 0.0, 0.0, 0.0, ())
    for step in range(case.steps):
        replicas = WORLD // case.ranks
        every = [make_batches(count, equal=case.equal, seed=10 * step + r) for r in range(replicas)]
        total = sum(len(ids) for batches in every for ids in batches.ids)
        loss = pipe.step(loader_step(every[replica], total)).loss
        expected = reference_loss(model, every, total)
        gradients = worst_of(parameter_pairs(pipe, mine, reference), gradients=True)
        if case.adds_up and step < case.steps - 1:
            gradients = max(gradients, _evaluate(pipe, model, every[replica], every, total))
            found = replace(found, loss=relative(loss, expected), gradients=gradients)
            continue
        norm = relative(pipe.clip_grad_norm_(0.5), nn.utils.clip_grad_norm_(both, 0.5))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        pairs = parameter_pairs(pipe, mine, reference, gradients=False)
        weights = worst_of(pairs, gradients=False)
        found = Found(
            max(found.loss, relative(loss, expected)),
            max(found.gradients, gradients),
            max(found.weights, weights),
            max(found.norm, norm),
            (),
        )
    row = pipe.timeline().ranks[pipe.rank]
    return replace(found, passes=tuple(str(slot.what) for slot in row))


def _evaluate(pipe: Pipeline, model: nn.Module, own, every, total: int) -> float:
    """Return the error of the loss of forward passes alone, which leave gradients as they are."""
    every_own = [*pipe.parameters()]  # FSDP2 leaves others in the modules
    before = [p.grad if p.grad is None else p.grad.clone() for p in every_own]
    loss = pipe.evaluate(loader_step(own, total)).loss
    for kept, parameter in zip(before, every_own, strict=True):
        assert (kept is None) == (parameter.grad is None)
        assert kept is None or torch.equal(whole(kept), whole(gradient(parameter)))
    kinds = {slot.what.kind for slot in pipe.timeline().ranks[pipe.rank]}
    assert "F" in kinds
    assert not {"B", "I", "W", "C", "IB"} & kinds
    return relative(loss, reference_loss(copies([model])[0], every, total))


def reference_loss(model: nn.Module, every, total: int) -> Tensor:
    """Leave the gradients of all replicas' batches on the model, and return their loss."""
    expected = torch.zeros(())
    for batches in every:
        for ids, labels in zip(batches.ids, batches.labels, strict=True):
            loss = mean_loss(model(ids), labels) / total
            loss.backward()
            expected += loss.detach()
    return expected


def parameter_pairs(pipe, mine, reference, *, gradients: bool = True):
    """Return our parameters with the reference's, each with the rows to compare."""
    every = slice(None)
    found = [
        (a, every, b, every)
        for stage, module in mine.items()
        for a, b in zip(module.parameters(), reference[stage].parameters(), strict=False)
    ]
    for module in pipe.modules():
        if isinstance(module, VocabularyShard):
            sharding = module.lm_head.sharding
            start, real = sharding.start, sharding.real
            rows = slice(0, real), slice(start, start + real)
            for name in ("weight", "bias"):
                pair = getattr(module.lm_head, name), getattr(reference[-1][-1], name)
                found += [(pair[0], rows[0], pair[1], rows[1])] if real else []
    if not gradients:
        return found
    for ours, _, theirs, _ in found:
        assert (ours.grad is None) == (theirs.grad is None)
    return [pair for pair in found if pair[2].grad is not None]
