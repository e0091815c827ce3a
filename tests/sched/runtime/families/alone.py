"""What the processes of the pool run with stages that each makes alone."""

from pathlib import Path
from typing import Any

import torch

from counterpoise.sched.runtime import Adapted, Pipeline, adapt, load_checkpoint, save_checkpoint
from tests.sched.runtime.families.models import make
from tests.sched.runtime.families.training import (
    Setting,
    batches_of,
    counted,
    forward_loss,
    loader_step,
)
from tests.sched.runtime.pool import make_mesh


def empty(kind: str, *, tied: bool = True, **more: Any) -> Any:
    """Return a tiny model on the meta device."""
    with torch.device("meta"):
        return make(kind, tied=tied, **more)


def saved(folder: Path, kind: str, *, tied: bool = True) -> str:
    """Return a folder with the files of a model, each of at most 10 kB."""
    make(kind, tied=tied).save_pretrained(folder, max_shard_size="10KB")
    return str(folder)


def made(setting: Setting, weights: str | int, **given: Any) -> tuple[Adapted, Pipeline]:
    adapted = adapt(empty(setting.kind, tied=setting.tied))
    mesh = make_mesh(setting.ranks)
    return adapted, adapted.pipeline(mesh, setting.schedule, weights=weights, **given)


def draw_and_save(_rank: int, setting: Setting, folder: str) -> tuple[float, float]:
    """Return the loss of weights that are drawn, and what `from_pretrained` makes of them."""
    adapted, pipe = made(setting, 7)
    try:
        adapted.save_pretrained(folder, pipe)
        kind: Any = type(adapted.model)
        model = kind.from_pretrained(folder)
        replica, replicas = make_mesh(setting.ranks)["dp"].get_local_rank(), 4 // setting.ranks
        every = [batches_of(setting, model, r, 0) for r in range(replicas)]
        total = sum(counted(batch) for own in every for batch in own)
        loss = pipe.evaluate(loader_step(every[replica], model, total)).loss
        return float(loss), float(sum(forward_loss(model, own, total) for own in every))
    finally:
        pipe.close()


def refusal(_rank: int, setting: Setting, weights: str, folder: str, images: Any = None) -> str:
    """Return what loading or saving raises here."""
    try:
        adapted, pipe = made(setting, weights, images=images)
    except (ValueError, OSError) as error:
        return str(error)
    try:
        adapted.save_pretrained(folder, pipe)
    except (ValueError, OSError) as error:
        return str(error)
    finally:
        pipe.close()
    return ""


def train_on(_rank: int, setting: Setting, weights: int, folder: str, first: int) -> list[float]:
    """Return the losses of steps up to the third, from a checkpoint if `first` is not 0."""
    adapted, pipe = made(setting, weights)
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=0.01)
    replica, losses = make_mesh(setting.ranks)["dp"].get_local_rank(), []
    try:
        if first:
            load_checkpoint(folder, pipe, optimizer)
        for step in range(first, 3):
            every = [batches_of(setting, adapted.model, r, step) for r in range(2)]
            total = sum(counted(batch) for own in every for batch in own)
            result = pipe.step(loader_step(every[replica], adapted.model, total))
            losses.append(float(result.loss))
            optimizer.step()
            optimizer.zero_grad()
            if step == 0:
                save_checkpoint(folder, pipe, optimizer)
        return losses
    finally:
        pipe.close()
