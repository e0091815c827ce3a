"""What the processes of the pool run: a pipeline of small stages beside a one-process reference."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from counterpoise.sched import schedule
from counterpoise.sched.runtime import Pipeline, VocabParallel
from tests.sched.runtime.models import HIDDEN, copies, freeze, make_batches, make_stages
from tests.sched.runtime.pool import WORLD


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


@dataclass(frozen=True)
class Found:
    """What a rank found: largest relative errors against one process, in single precision."""

    loss: float
    gradients: float
    weights: float
    norm: float
    passes: tuple[str, ...]


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="sum")


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


def relative(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / (theirs.abs().max() + 1e-12))


def run_case(rank: int, case: Case, steps: int = 2) -> Found:
    """Train two steps both ways and compare; every process computes the reference for itself."""
    mesh = init_device_mesh("cpu", (WORLD // case.ranks, case.ranks), mesh_dim_names=("dp", "pp"))
    replica, own = mesh["dp"].get_local_rank(), mesh["pp"].get_local_rank()
    count = case.microbatches or 2 * case.ranks
    program = schedule(case.name, ranks=case.ranks, microbatches=count)
    stages = [stage.float() for stage in make_stages(program.stages)]
    vocabulary = any(item.kind in "SL" for row in program.ranks for item in row)
    freeze(stages, case.frozen)
    reference = copies(stages)
    made = {}
    if vocabulary:
        head = stages[-1][-1]
        made["vocabulary"] = VocabParallel(head, algorithm=case.name.rpartition("-")[2])
        stages[-1] = nn.Sequential(*stages[-1][:-1])
    else:
        made["loss"] = mean_loss
    mine = {s: stages[s] for s in program.stages_of(own)}
    pipe = Pipeline(
        mesh,
        schedule=case.name,
        stages=mine,
        hidden=HIDDEN,
        deadline_s=40,
        **made,
        **dict(case.options),
    )
    try:
        return _compare(pipe, mine, reference, case, replica, steps, count)
    finally:
        pipe.close()


def _compare(pipe, mine, reference, case: Case, replica: int, steps: int, count: int) -> Found:
    trained = [p for stage in mine.values() for p in stage.parameters() if p.requires_grad]
    model = nn.Sequential(*reference)
    both = [p for p in model.parameters() if p.requires_grad]
    optimizers = [torch.optim.SGD(p, lr=0.1) for p in (trained, both) if p]
    worst = [0.0, 0.0, 0.0, 0.0]
    for step in range(steps):
        replicas = WORLD // case.ranks
        every = [make_batches(count, equal=case.equal, seed=10 * step + r) for r in range(replicas)]
        total = sum(len(ids) for batches in every for ids in batches.ids)
        result = pipe.step(loader_step(every[replica], total))
        expected = 0.0
        for batches in every:
            for ids, labels in zip(batches.ids, batches.labels, strict=True):
                loss = mean_loss(model(ids), labels) / total
                loss.backward()
                expected += loss.item()
        worst[0] = max(worst[0], abs(float(result.loss) - expected) / abs(expected))
        pairs = [
            (a, b)
            for stage, module in mine.items()
            for a, b in zip(module.parameters(), reference[stage].parameters(), strict=False)
        ]
        for ours, theirs in pairs:
            assert (ours.grad is None) == (theirs.grad is None)
            if theirs.grad is not None:
                worst[1] = max(worst[1], relative(ours.grad, theirs.grad))
        norm = pipe.clip_grad_norm_(0.5)
        wanted = nn.utils.clip_grad_norm_(both, 0.5)
        worst[3] = max(worst[3], relative(norm, wanted))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        worst[2] = max([worst[2], *(relative(a.detach(), b.detach()) for a, b in pairs)])
    row = pipe.timeline().ranks[pipe.rank]
    return Found(*worst, tuple(str(slot.what) for slot in row))
