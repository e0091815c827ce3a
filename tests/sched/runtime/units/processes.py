"""What the processes run: units on ranks of their own, beside one process."""

import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from counterpoise.sched import schedule
from counterpoise.sched.runtime import HiddenStates, Pipeline, StageOptions, Units, UnitSize
from counterpoise.sched.transforms.training import with_whole_last_backward
from tests.sched.runtime.cases import errors_of, loss_or_vocabulary
from tests.sched.runtime.encoders.models import (
    Model,
    Sample,
    make_model,
    make_samples,
    merge,
    reference,
    specs_of,
)
from tests.sched.runtime.encoders.processes import FIELDS, loader_step
from tests.sched.runtime.models import HIDDEN, Block
from tests.sched.runtime.tensor_parallel import divide_in
from tests.sched.runtime.training import train_beside


@dataclass(frozen=True)
class UnitSetting:
    """A schedule on units. `layers`: of each encoder, in all. `frozen`: the encoders that are.

    `backbone`, `encoder`: dp, pp, and tp if it is not 1. `sharded`: whether FSDP2 divides the
    stages, and with "a part" not all of each, over replicas. `spread`: whether encoders' replicas
    share each microbatch's images.
    """

    name: str
    backbone: tuple[int, ...]
    encoder: tuple[int, ...]
    layers: tuple[int, ...] = (2,)
    frozen: tuple[int, ...] = ()
    sharded: str = ""
    spread: bool = False
    dtype: torch.dtype = torch.float32

    @property
    def units(self) -> Units:
        return Units(UnitSize(*self.backbone), UnitSize(*self.encoder), spread=self.spread)

    @property
    def microbatches(self) -> int:
        return max(4, 2 * self.backbone[1])


def run_units(rank: int, setting: UnitSetting, steps: int = 1) -> dict[str, float]:
    """Train some steps both ways; return the largest relative errors."""
    units, count = setting.units, setting.microbatches
    at = units.rank_of(rank)
    base = schedule(setting.name, ranks=units.backbone.pp, microbatches=count)
    model = make_model(setting.layers, base.stages, setting.dtype, merges=False)
    for encoder in setting.frozen:
        for layer in model.encoders[encoder]:
            layer.requires_grad_(False)
    expected = copy.deepcopy(model)
    pipe, mine = make_pipe(setting, model, at)
    try:
        return train_beside(
            pipe,
            [p for piece in expected.pieces() for p in piece.parameters()],
            steps,
            samples=partial(samples_of, setting),
            given=lambda every, total: [loader_step(every[r], total) for r in units.replicas(at)],
            reference=partial(reference, expected),
            errors=partial(errors_of, pipe, mine, expected.stages, model.beside(expected)),
            check=partial(check_order, pipe, setting),
        )
    finally:
        pipe.close()


def make_pipe(
    setting: UnitSetting, model: Model, at: int, resumed: Any = None, *, divided: bool = True
) -> tuple[Pipeline, dict[int, nn.Module]]:
    """Return a pipeline of the model, and this rank's stages, none on an encoder's rank.

    `resumed`: a schedule in place of the setting's. `divided`: whether lanes divide the model.
    """
    units = setting.units
    base = schedule(setting.name, ranks=units.backbone.pp, microbatches=setting.microbatches)
    made = loss_or_vocabulary(base, model.stages, setting.name)
    seat = units.seat(at)
    stages = base.stages_of(seat) if seat < units.backbone.pp else ()
    mine = {s: model.stages[s] for s in stages}
    if divided:
        divide_in(units, model.pieces())
    if setting.sharded:
        mesh = units.mesh()["dp"]  # on encoders' ranks, too: all processes make it
        for module in mine.values():
            first, *_ = (part for part in module.modules() if isinstance(part, Block))
            whole_or_part = first if setting.sharded == "a part" else module
            fully_shard(whole_or_part, mesh=mesh, reshard_after_forward=False)
    pipe = Pipeline(
        units,
        schedule=resumed or setting.name,
        stages=mine,
        encoders=[
            replace(spec, images={"tiles": 1}) for spec in specs_of(model, setting.dtype, FIELDS)
        ],
        run=StageOptions(merge=merge),
        hidden=HiddenStates(HIDDEN, dtype=setting.dtype),
        deadline_s=40,
        **made,
    )
    return pipe, mine


def check_order(pipe: Pipeline, setting: UnitSetting) -> None:
    """Check that every rank of the timeline ran passes, the language model's as scheduled."""
    timeline = pipe.timeline()
    base = schedule(setting.name, ranks=setting.backbone[1], microbatches=setting.microbatches)
    if setting.sharded:  # FSDP2 reduces in the last backward, which is a whole one
        base = with_whole_last_backward(base, range(base.stages))
    for row, planned in zip(timeline.ranks, base.ranks, strict=False):
        done = [slot.what for slot in row if slot.what.kind in "FBIW"]
        assert done == [item for item in planned if item.kind in "FBIW"]
    assert len(timeline.ranks) == setting.units.seats


def samples_of(setting: UnitSetting, seed: int) -> list[list[Sample]]:
    """Return every replica's microbatches."""
    replicas = range(setting.units.backbone.dp)
    return [make_samples(setting.microbatches, seed + r, setting.dtype) for r in replicas]
