"""What the processes run: units on ranks of their own, beside one process."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from counterpoise.sched import schedule
from counterpoise.sched.runtime import Pipeline, Units, UnitSize, VocabParallel
from tests.sched.runtime.cases import ALGORITHMS, gradient, parameter_pairs, relative, whole
from tests.sched.runtime.encoders.models import (
    Model,
    make_model,
    make_samples,
    merge,
    reference,
    specs_of,
)
from tests.sched.runtime.encoders.processes import FIELDS, loader_step
from tests.sched.runtime.models import HIDDEN, total_loss


@dataclass(frozen=True)
class UnitSetting:
    """A schedule on units. `layers`: of each encoder, in all. `frozen`: the encoders that are."""

    name: str
    backbone: tuple[int, int]
    encoder: tuple[int, int]
    layers: tuple[int, ...] = (2,)
    frozen: tuple[int, ...] = ()

    @property
    def units(self) -> Units:
        return Units(UnitSize(*self.backbone), UnitSize(*self.encoder))

    @property
    def microbatches(self) -> int:
        return max(4, 2 * self.backbone[1])


def run_units(rank: int, setting: UnitSetting, steps: int = 1) -> dict[str, float]:
    """Train some steps both ways; return the largest relative errors."""
    units, count = setting.units, setting.microbatches
    at = rank % units.ranks
    base = schedule(setting.name, ranks=units.backbone.pp, microbatches=count)
    model = make_model(setting.layers, base.stages, torch.float32, merges=False)
    for encoder in setting.frozen:
        for layer in model.encoders[encoder]:
            layer.requires_grad_(False)
    expected = copy.deepcopy(model)
    pipe, mine = make_pipe(setting, model, at)
    try:
        found: dict[str, float] = {}
        theirs = [p for piece in expected.pieces() for p in piece.parameters() if p.requires_grad]
        ours = [p for p in pipe.parameters() if p.requires_grad]
        optimizers = [torch.optim.SGD(p, lr=0.1) for p in (ours, theirs) if p]
        for step in range(steps):
            replicas = range(units.backbone.dp)
            every = [make_samples(count, 10 * step + r, torch.float32) for r in replicas]
            total = sum(len(s.ids) for samples in every for s in samples)
            given = [loader_step(every[r], total) for r in units.replicas(at)]
            result = pipe.step(given if len(given) > 1 else given[0])
            check_order(pipe, setting)
            wanted = sum(reference(expected, samples, total) for samples in every)
            new = {"loss": abs(float(result.loss) - wanted) / wanted}
            new |= compare(pipe, mine, model, expected, gradients=True)
            norm = nn.utils.clip_grad_norm_(theirs, 0.5)
            new["norm"] = float(relative(pipe.clip_grad_norm_(0.5), norm))
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            after = compare(pipe, mine, model, expected, gradients=False)
            new |= {f"{name} after": value for name, value in after.items()}
            found = {name: max(found.get(name, 0.0), value) for name, value in new.items()}
        if steps > 1:
            found["evaluation"] = evaluate(pipe, setting, expected, at)
        return found
    finally:
        pipe.close()


def make_pipe(
    setting: UnitSetting, model: Model, at: int, resumed: Any = None
) -> tuple[Pipeline, dict[int, nn.Module]]:
    """Return a pipeline of the model, and this rank's stages, none on an encoder's rank.

    `resumed`: a schedule in place of the setting's.
    """
    units = setting.units
    base = schedule(setting.name, ranks=units.backbone.pp, microbatches=setting.microbatches)
    made: dict[str, Any] = {"loss": total_loss}
    if any(item.kind in "SL" for row in base.ranks for item in row):
        *body, head = model.stages[-1].children()
        assert isinstance(head, nn.Linear)
        model.stages[-1] = nn.Sequential(*body)
        algorithm = ALGORITHMS[setting.name.rpartition("-")[2]]
        made = {"vocabulary": VocabParallel(head, None, algorithm=algorithm)}
    seat = units.seat(at)
    stages = base.stages_of(seat) if seat < units.backbone.pp else ()
    mine = {s: model.stages[s] for s in stages}
    pipe = Pipeline(
        units,
        schedule=resumed or setting.name,
        stages=mine,
        encoders=specs_of(model, fields=FIELDS),
        merge=merge,
        hidden=HIDDEN,
        deadline_s=40,
        **made,
    )
    return pipe, mine


def compare(
    pipe: Pipeline,
    mine: dict[int, nn.Module],
    model: Model,
    expected: Model,
    *,
    gradients: bool,
) -> dict[str, float]:
    """Return the largest errors of what this rank has: stages, or encoder layers."""
    pairs = parameter_pairs(pipe, mine, expected.stages, gradients=gradients)
    if not mine:
        pairs = []

    def error(ours: Any, r: Any, theirs: Any, q: Any) -> float:
        both = (ours.grad, theirs.grad) if gradients else (ours, theirs)
        return float(relative(whole(both[0])[r], both[1][q]))

    found = {"stages": max([0.0, *(error(*pair) for pair in pairs)])}
    own = {id(p) for p in pipe.parameters()}
    errors = [0.0]
    for ours, theirs in zip(model.encoders, expected.encoders, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            for p, q in zip(one.parameters(), other.parameters(), strict=True):
                if id(p) not in own:
                    continue
                if not gradients:
                    errors.append(float(relative(p.detach(), q.detach())))
                elif q.grad is not None:
                    errors.append(float(relative(gradient(p), gradient(q))))
                else:
                    assert p.grad is None
    return found | {"encoders": max(errors)}


def check_order(pipe: Pipeline, setting: UnitSetting) -> None:
    """Check that every rank of the timeline ran passes, the language model's as scheduled."""
    timeline = pipe.timeline()
    base = schedule(setting.name, ranks=setting.backbone[1], microbatches=setting.microbatches)
    for row, planned in zip(timeline.ranks, base.ranks, strict=False):
        done = [slot.what for slot in row if slot.what.kind in "FBIW"]
        assert done == [item for item in planned if item.kind in "FBIW"]
    assert len(timeline.ranks) == setting.units.seats


def evaluate(pipe: Pipeline, setting: UnitSetting, expected: Model, at: int) -> float:
    """Return the error of the loss of forward passes alone."""
    units = setting.units
    every = [
        make_samples(setting.microbatches, 70 + r, torch.float32) for r in range(units.backbone.dp)
    ]
    total = sum(len(s.ids) for samples in every for s in samples)
    given = [loader_step(every[r], total) for r in units.replicas(at)]
    wanted = sum(reference(expected, samples, total) for samples in every)
    return abs(float(pipe.evaluate(given).loss) - wanted) / wanted
