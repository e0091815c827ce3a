"""What the processes of the pool run: pipelines with encoder passes, beside one process."""

import copy
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from counterpoise.sched import parse_program
from counterpoise.sched.runtime import EncoderLayers, Pipeline
from tests.sched.runtime.encoders.models import (
    Model,
    Sample,
    encoded,
    features,
    hidden,
    layers_of,
    make_model,
    make_samples,
    reference,
)
from tests.sched.runtime.models import HIDDEN, total_loss
from tests.sched.runtime.pool import WORLD, make_mesh


@dataclass(frozen=True)
class Setting:
    """A schedule on `ranks` processes with encoder pipelines of `width`; the others are replicas.

    `text`: of a program to run instead of the schedule.
    """

    name: str
    ranks: int = 4
    width: int = 1
    layers: int = 2
    frozen: bool = False
    text: str = ""


def loader_step(samples: list[Sample], total: int) -> SimpleNamespace:
    names = {"ids": "input_ids", "labels": "labels", "pixels": "pixel_values"}
    return SimpleNamespace(
        microbatches=[{names[name]: value for name, value in vars(s).items()} for s in samples],
        infos=[
            SimpleNamespace(step_label_tokens=total, step_samples=1, costs=s.costs) for s in samples
        ],
    )


def run_setting(rank: int, setting: Setting) -> dict[str, float]:
    """Run two steps both ways; return the largest relative errors, and the fields' number."""
    mesh = make_mesh(setting.ranks)
    own, replica = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()

    def program(ranks: int, microbatches: int):
        if setting.text:
            return parse_program(setting.text)
        width, layers = setting.width, setting.layers
        return encoded(setting.name, ranks, microbatches, width=width, layers=layers)

    base = program(setting.ranks, 2 * setting.ranks)
    model = make_model(setting.width * setting.layers, base.stages, torch.float32)
    for layer in model.encoder if setting.frozen else ():
        layer.requires_grad_(False)
    expected = copy.deepcopy(model)
    mine = layers_of(model, own, setting.width)
    pipe = Pipeline(
        mesh,
        schedule=program,
        stages={s: model.stages[s] for s in base.stages_of(own)},
        encoder=EncoderLayers(mine, features, hidden),
        hidden=HIDDEN,
        loss=total_loss,
        deadline_s=40,
    )
    worst: dict[str, float] = {}
    try:
        for step in range(2):
            every = [
                make_samples(base.microbatches, 10 * step + dp, torch.float32)
                for dp in range(WORLD // setting.ranks)
            ]
            total = sum(len(s.ids) for samples in every for s in samples)
            loss = pipe.step(loader_step(every[replica], total)).loss
            wanted = _reference(expected, every, total)
            errors = {"loss": abs(float(loss) - wanted) / wanted}
            errors |= _compare(model, expected, mine, setting, own, mesh["pp"].get_group())
            worst = {k: max(worst.get(k, 0.0), v) for k, v in errors.items()}
            for piece in (*model.pieces(), *expected.pieces()):
                piece.zero_grad()
    finally:
        pipe.close()
    needs = {"pixel_values"} & pipe.fields(own)
    assert bool(needs) == (own % setting.width == 0)
    return worst


def _reference(model: Model, every: list[list[Sample]], total: int) -> float:
    loss = 0.0
    for samples in every:
        part = copy.deepcopy(model)
        own = sum(len(sample.ids) for sample in samples)
        loss += reference(part, samples) * own / total
        pairs = zip(model.pieces(), part.pieces(), strict=True)
        for whole, piece in pairs:
            for one, other in zip(whole.parameters(), piece.parameters(), strict=True):
                if other.grad is not None:
                    found = other.grad * own / total
                    one.grad = found if one.grad is None else one.grad + found
    return loss


def _compare(
    model: Model,
    expected: Model,
    mine: dict[int, nn.Module],
    setting: Setting,
    own: int,
    group: dist.ProcessGroup,
) -> dict[str, float]:
    """The errors of this rank's stages, and of the encoder: the sum of all its copies."""
    first = own % setting.width * setting.layers
    held = {first + n: [p.grad for p in layer.parameters()] for n, layer in mine.items()}
    found: list[dict[int, list[Tensor | None]]] = [{}] * group.size()
    dist.all_gather_object(found, held, group=group)
    worst = {"stages": 0.0, "encoder": 0.0}
    for number, layer in enumerate(expected.encoder):
        for at, parameter in enumerate(layer.parameters()):
            grads = [copies[number][at] for copies in found if number in copies]
            there = [g for g in grads if g is not None]
            assert bool(there) == (parameter.grad is not None)
            if parameter.grad is not None:
                worst["encoder"] = max(worst["encoder"], _error(sum(there), parameter.grad))
    pairs = zip(model.stages, expected.stages, strict=True)
    for ours, theirs in pairs:
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            if a.grad is not None:
                assert b.grad is not None
                worst["stages"] = max(worst["stages"], _error(a.grad, b.grad))
    return worst


def _error(ours, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())
