"""What the processes run: images that travel between all ranks of a mesh, beside one process."""

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from counterpoise.loader import ImageDispatch
from counterpoise.sched import schedule
from counterpoise.sched.runtime import HiddenStates, Pipeline, StageOptions, TravellingImages
from tests.sched.runtime.cases import errors_of, loss_or_vocabulary
from tests.sched.runtime.encoders.models import (
    INPUTS,
    Model,
    Sample,
    make_model,
    make_samples,
    merge,
    reference,
)
from tests.sched.runtime.encoders.processes import loader_step
from tests.sched.runtime.models import HIDDEN
from tests.sched.runtime.pool import make_mesh
from tests.sched.runtime.training import train_beside


@dataclass(frozen=True)
class TravelSetting:
    """A schedule on `ranks` processes, and as many replicas as there are processes for.

    `frozen`: "encoder", or "stages" for all of the language model. `stage_merges`: whether the
    first stage gets the features, and no function. `sized`: whether images have sizes.
    """

    name: str
    ranks: int
    frozen: str = ""
    stage_merges: bool = False
    dtype: torch.dtype = torch.float64
    layers: int = 2
    sized: bool = False

    @property
    def microbatches(self) -> int:
        return max(4, 2 * self.ranks)


class Sized(nn.Sequential):
    """An encoder that is called with sizes, which are those of its rows."""

    def forward(self, rows: Tensor, sizes: list[tuple[int, int]]) -> Tensor:  # type: ignore[override]
        assert sum(height * width for height, width in sizes) == len(rows)
        found: Tensor = super().forward(rows)
        return found


def make_travelling(setting: TravelSetting, model: Model) -> tuple[Pipeline, dict[int, nn.Module]]:
    """Return a pipeline of the model, whose images travel, and this rank's stages."""
    mesh = make_mesh(setting.ranks)
    base = schedule(setting.name, ranks=setting.ranks, microbatches=setting.microbatches)
    made = loss_or_vocabulary(base, model.stages, setting.name)
    mine = {s: model.stages[s] for s in base.stages_of(mesh["pp"].get_local_rank())}
    blank = torch.zeros(1, INPUTS, dtype=setting.dtype)
    encoder = nn.Sequential(*model.encoders[0])
    dispatch = ImageDispatch(
        Sized(*model.encoders[0]) if setting.sized else encoder, blank,
        blank_size=(1, 1) if setting.sized else None, reduction="sum",
    )  # fmt: skip
    pipe = Pipeline(
        mesh, schedule=setting.name, stages=mine,
        encoders=TravellingImages("vision", dispatch, sizes="grids" if setting.sized else ""),
        hidden=HiddenStates(HIDDEN, dtype=setting.dtype),
        run=StageOptions(merge=None if setting.stage_merges else merge), deadline_s=40, **made,
    )  # fmt: skip
    return pipe, mine


def run_travelling(rank: int, setting: TravelSetting, steps: int = 1) -> dict[str, float]:
    """Train some steps both ways; return the largest relative errors."""
    del rank
    stages = schedule(setting.name, ranks=setting.ranks, microbatches=setting.microbatches).stages
    model = make_model([setting.layers], stages, setting.dtype, merges=setting.stage_merges)
    _freeze(setting, model)
    expected = copy.deepcopy(model)
    pipe, mine = make_travelling(setting, model)
    try:
        return train_beside(
            pipe,
            [p for piece in expected.pieces() for p in piece.parameters()],
            steps,
            samples=partial(samples_of, setting),
            given=lambda every, total: without_pixels(
                loader_step(every[pipe.replica], total), keep=0 in mine
            ),
            reference=partial(reference, expected),
            errors=partial(errors_of, pipe, mine, expected.stages, model.beside(expected)),
        )
    finally:
        pipe.close()


def without_pixels(step: Any, *, keep: bool) -> Any:
    """Leave the pixels to the ranks that need them, as `DataLoader(fields=...)` does.

    There, images have sizes, too: two rows are one, and a last one may be one row.
    """
    for batch in step.microbatches:
        pixels = batch.pop("pixel_values")
        if keep:
            rows = [2] * (len(pixels) // 2) + [1] * (len(pixels) % 2)
            grids = torch.tensor([[1, n] for n in rows], dtype=torch.int64).view(-1, 2)
            batch |= {"pixel_values": pixels, "grids": grids}
    return step


def samples_of(setting: TravelSetting, seed: int, replicas: int = 0) -> list[list[Sample]]:
    """Return every replica's microbatches."""
    each = range(replicas or dist.get_world_size() // setting.ranks)
    return [make_samples(setting.microbatches, seed + r, setting.dtype) for r in each]


def _freeze(setting: TravelSetting, model: Model) -> None:
    pieces: list[nn.Module] = {"": [], "encoder": model.encoders[0], "stages": model.stages}[
        setting.frozen
    ]
    for piece in pieces:
        piece.requires_grad_(False)
