"""What the processes of the pool run: an adapted model in a pipeline, beside its own forward."""

import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from counterpoise.loader import hf_kwargs
from counterpoise.sched import EncoderTimes, Program, schedule, unit_costs, with_encoders
from counterpoise.sched.planners.stage_split import SplitPlan, make_split
from counterpoise.sched.runtime import Adapted, Pipeline, StageOptions, Units, UnitSize, adapt
from counterpoise.sched.runtime.vocabulary.shard import VocabularyShard
from tests.sched.runtime.cases import relative
from tests.sched.runtime.families.models import IMAGES, make, microbatch
from tests.sched.runtime.pool import WORLD, make_mesh

# Of each microbatch of a replica: the lengths of its samples, and their images.
PACKS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((5, 3), (1, 0)), ((2, 7), (0, 0)), ((4, 4, 2), (0, 2, 1)), ((3,), (0,)),
)  # fmt: skip
SMALL = 1e-2


@dataclass(frozen=True)
class Setting:
    """A family, and how it is trained on four processes.

    `recompute`: every other layer again. `units`: whether encoders have two of the processes.
    `width`: of encoder pipelines; `pieces`: of each of their layers.
    `folder`: of the model's files, where each process makes its own part, and saves it beside them.
    `autocast`: the precision of both, None for that of the weights.
    """

    kind: str
    schedule: str = "1f1b"
    ranks: int = 2
    tied: bool = True
    recompute: bool = False
    steps: int = 3
    units: bool = False
    width: int = 1
    pieces: int = 1
    folder: str = ""
    autocast: torch.dtype | None = None


def batches_of(setting: Setting, model: Any, replica: int, step: int) -> list[dict[str, Any]]:
    found = []
    for number in range(max(4, 2 * setting.ranks)):
        lengths, images = PACKS[(number + replica + step) % len(PACKS)]
        images = images if setting.kind in IMAGES else (0,) * len(images)
        seed = 100 * step + 10 * replica + number
        found.append(microbatch(setting.kind, model, lengths, images, seed))
    return found


def given_to_forward(batch: dict[str, Any], model: Any) -> dict[str, Any]:
    return {"input_ids": batch["input_ids"], **hf_kwargs(batch, model)}


def counted(batch: dict[str, Any]) -> int:
    return int((batch["labels"] >= 0).sum())


def loader_step(batches: list[dict[str, Any]], model: Any, total: int) -> SimpleNamespace:
    """Return a step as the loader gives it."""
    infos = []
    for batch in batches:
        pixels = batch.get("pixel_values", ())
        costs = {"tokens": batch["input_ids"].numel(), "tiles": len(pixels), "patches": len(pixels)}
        infos.append(SimpleNamespace(step_label_tokens=total, step_samples=1, costs=costs))
        positions = hf_kwargs(batch, model)["position_ids"]
        if positions.ndim == 3:
            batch["mrope_position_ids"] = positions[1:]
    return SimpleNamespace(microbatches=batches, infos=infos)


def forward_loss(model: Any, batches: list[dict[str, Any]], total: int) -> Tensor:
    """Leave the gradients of a replica's microbatches, and return their loss, all by forward."""
    found = torch.zeros(())
    for batch in batches:
        loss = model(**given_to_forward(batch, model), labels=batch["labels"]).loss
        loss = loss * (counted(batch) / total)
        loss.backward()
        found += loss.detach()
    return found


def pairs_of(pipe: Pipeline, expected: nn.Module) -> dict[str, tuple[Tensor, Tensor, slice, slice]]:
    """Return by name what this rank trains: ours, theirs, and the rows of each to compare."""
    theirs = dict(expected.named_parameters(remove_duplicate=False))
    found: dict[str, tuple[Tensor, Tensor, slice, slice]] = {}
    every = slice(None)
    layers = {id(module): name for name, module in pipe._layers}
    for module in pipe.modules():
        if isinstance(module, VocabularyShard):
            for name, ours, sharding in module.named_rows():
                rows = slice(sharding.start, sharding.start + sharding.real)
                found[name] = (ours, theirs[name], slice(0, sharding.real), rows)
            continue
        prefix = f"{layers[id(module)]}." if id(module) in layers else ""
        for name, ours in module.named_parameters():
            found[prefix + name] = (ours, theirs[prefix + name], every, every)
    return found


def plan_of(setting: Setting, stages: int) -> SplitPlan | None:
    if not setting.recompute:
        return None
    sizes = {2: (1, 3), 4: (1, 1, 1, 1), 8: (1, 1, 1, 1, 0, 0, 0, 0)}[stages]
    return make_split(sizes, [range(size)[::2] for size in sizes])


def made_schedule(setting: Setting, adapted: Adapted) -> Any:
    """Return a name, or a function that fills its schedule with encoder pipelines of a width."""
    if setting.width == 1:
        return setting.schedule
    assert adapted.images is not None
    count = setting.pieces * len(adapted.images.layers)

    def make(ranks: int, microbatches: int) -> Program:
        base = schedule(setting.schedule, ranks=ranks, microbatches=microbatches)
        times = EncoderTimes((3,) * count, (5,) * count)
        return with_encoders(base, unit_costs(10, 20, 4), [times], width=setting.width)

    return make


def cast(setting: Setting) -> Any:
    """Return the context of the model's own forward."""
    on = setting.autocast is not None
    return torch.autocast("cpu", setting.autocast or torch.bfloat16, enabled=on)


def train(rank: int, setting: Setting) -> dict[str, float]:
    """Return the largest relative errors of some steps, beside the model's own forward."""
    del rank
    mesh: Any = Units(backbone=UnitSize(1, setting.ranks), encoder=UnitSize(2, 1))
    replica, replicas = 0, 1
    if not setting.units:
        mesh = make_mesh(setting.ranks)
        replica, replicas = mesh["dp"].get_local_rank(), WORLD // setting.ranks
    model = make(setting.kind, tied=setting.tied)
    expected = copy.deepcopy(model)
    stages = setting.ranks * (2 if setting.schedule == "zbv" else 1)
    plan = plan_of(setting, stages)
    weights = setting.folder or None
    if weights:
        with torch.device("meta"):
            model = type(model)(model.config).eval()
    adapted = adapt(model)
    images = {"pieces": setting.pieces} if setting.pieces > 1 else None
    made = made_schedule(setting, adapted)
    pipe = adapted.pipeline(
        mesh, made, plan=plan, images=images, weights=weights, deadline_s=40,
        run=StageOptions(autocast=setting.autocast),
    )  # fmt: skip
    optimizers = [torch.optim.SGD(p, lr=0.02) for p in (pipe.parameters(), expected.parameters())]
    pairs = pairs_of(pipe, expected)
    worst: dict[str, float] = {}
    try:
        for step in range(setting.steps):
            every = [batches_of(setting, expected, r, step) for r in range(replicas)]
            total = sum(counted(batch) for own in every for batch in own)
            loss = pipe.step(loader_step(every[replica], expected, total)).loss
            with cast(setting):
                wanted = sum(forward_loss(expected, own, total) for own in every)
            found = {"loss": relative(loss, torch.as_tensor(wanted))}
            grads = (p.grad.abs().max() for p in expected.parameters() if p.grad is not None)
            # what is nothing but rounding (keys' biases) is not compared with itself
            least = SMALL * max(map(float, grads))
            for name, (a, b, here, there) in pairs.items():
                ours, theirs = (torch.zeros_like(p) if p.grad is None else p.grad for p in (a, b))
                scale = max(float(theirs.abs().max()), least)
                if ours[here].numel():
                    found[name] = float((ours[here] - theirs[there]).abs().max() / scale)
            norms = pipe.clip_grad_norm_(0.5), nn.utils.clip_grad_norm_(expected.parameters(), 0.5)
            found["norm"] = relative(*norms)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            for name, (a, b, here, there) in pairs.items():
                if a[here].numel():
                    found[f"{name} after"] = relative(a.detach()[here], b.detach()[there])
            worst = {name: max(worst.get(name, 0.0), error) for name, error in found.items()}
        loss = pipe.evaluate(loader_step(every[replica], expected, total)).loss
        with cast(setting):
            wanted = sum(forward_loss(expected, own, total) for own in every)
        state, whole = pipe.state(), expected.state_dict()
        for name in state.model.keys() - state.rows.keys():
            worst[f"{name} saved"] = relative(state.model[name].detach(), whole[name].detach())
        worst["evaluation"] = relative(loss, torch.as_tensor(wanted))
        if weights:
            adapted.save_pretrained(f"{weights}-saved", pipe, shard_bytes=10_000)
            saved = type(model).from_pretrained(f"{weights}-saved")
            for name, (a, b, here, there) in pairs_of(pipe, saved).items():
                worst[f"{name} saved"] = float(not torch.equal(a[here], b[there]))
    finally:
        pipe.close()
    return worst
