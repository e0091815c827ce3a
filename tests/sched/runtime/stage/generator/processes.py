"""What the processes run: a language model with a decoder behind it, beside one process."""

import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from counterpoise.sched import schedule
from counterpoise.sched.runtime import (
    Pipeline,
    StageOptions,
    Units,
    UnitSize,
    load_checkpoint,
    save_checkpoint,
)
from tests.sched.runtime.cases import errors_of, loss_or_vocabulary
from tests.sched.runtime.encoders.models import Sample, make_samples, merge, specs_of
from tests.sched.runtime.encoders.processes import FIELDS
from tests.sched.runtime.models import HIDDEN
from tests.sched.runtime.pool import make_mesh
from tests.sched.runtime.stage.generator.decoder import (
    Generating,
    costs_of,
    make_generating,
    marks_of,
    pictures_of,
    reference,
    spec_of,
)
from tests.sched.runtime.tensor_parallel import divide_in
from tests.sched.runtime.training import train_beside


@dataclass(frozen=True)
class Drawing:
    """A schedule with a decoder behind it.

    `backbone`, `encoder`, `generator`: dp, pp, and tp if it is not 1, of each; without a
    generator's, it is on the last stage's rank, and without any, all is on a mesh. `frozen`:
    "encoders", "stages", "decoder". `options`: of the pipeline.
    """

    name: str
    backbone: tuple[int, ...]
    generator: tuple[int, ...] | None = None
    encoder: tuple[int, ...] | None = None
    frozen: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def where(self) -> Units | DeviceMesh:
        if self.generator is None and self.encoder is None:
            return make_mesh(self.backbone[1], self.backbone[0])
        return Units(
            UnitSize(*self.backbone),
            None if self.encoder is None else UnitSize(*self.encoder),
            generator=None if self.generator is None else UnitSize(*self.generator),
        )

    @property
    def microbatches(self) -> int:
        return max(4, 2 * self.backbone[1])


def run_drawing(rank: int, setting: Drawing, steps: int = 1) -> dict[str, float]:
    """Train some steps both ways; return the largest relative errors."""
    count = setting.microbatches
    base = schedule(setting.name, ranks=setting.backbone[1], microbatches=count)
    layers = (2,) if setting.encoder is not None else ()
    model = make_generating(layers, base.stages, setting.frozen)
    expected = copy.deepcopy(model)
    pipe, mine = make_pipe(rank, setting, model)
    try:
        return train_beside(
            pipe,
            [p for piece in expected.pieces() for p in piece.parameters()],
            steps,
            samples=partial(samples_of, setting),
            given=partial(given, pipe, setting),
            reference=partial(reference, expected),
            errors=partial(errors_of, pipe, mine, expected.model.stages, model.beside(expected)),
        )
    finally:
        pipe.close()


LAYOUTS = (Drawing("1f1b", (1, 1), (2, 1), (1, 1)), Drawing("1f1b", (2, 1), encoder=(2, 1)))


def run_resumed(rank: int, folder: Path) -> dict[str, float]:
    """Train a step on each layout, the second from what the first has saved; return the errors."""
    expected = make_generating((2,), 1)
    theirs = optimizer_of([p for piece in expected.pieces() for p in piece.parameters()])
    for step, setting in enumerate(LAYOUTS):
        model = make_generating((2,), 1, seed=step)
        pipe, mine = make_pipe(rank, setting, model)
        try:
            ours = optimizer_of(pipe.parameters())
            if step:
                load_checkpoint(folder / "step-1", pipe, ours)
            every = samples_of(setting, step)
            total = sum(len(s.ids) for samples in every for s in samples)
            pipe.step(given(pipe, setting, every, total))
            for samples in every:
                reference(expected, samples, total)
            for optimizer in (ours, theirs):
                optimizer.step()
                optimizer.zero_grad()
            if not step:
                save_checkpoint(folder / "step-1", pipe, ours)
            beside = model.beside(expected)
            found = errors_of(pipe, mine, expected.model.stages, beside, gradients=False)
        finally:
            pipe.close()
    return found


def optimizer_of(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def make_pipe(
    rank: int, setting: Drawing, model: Generating
) -> tuple[Pipeline, dict[int, nn.Module]]:
    """Return a pipeline of the model, and this rank's stages, none beside the language model."""
    stages, where = model.model.stages, setting.where
    base = schedule(setting.name, ranks=setting.backbone[1], microbatches=2 * setting.backbone[1])
    # The hidden states come before the head, which is in the last stage, or divided.
    states = str(len(list(stages[-1].children())) - 2)
    made = loss_or_vocabulary(base, stages, setting.name)
    if "vocabulary" in made:
        states = ""
    if isinstance(where, Units):
        seat = where.seat(where.rank_of(rank))
        divide_in(where, model.pieces())
    else:
        seat = where["pp"].get_local_rank()
    mine = {s: stages[s] for s in base.stages_of(seat)} if seat < setting.backbone[1] else {}
    merges = None
    if setting.encoder is not None:
        made["encoders"], merges = specs_of(model.model, fields=FIELDS), _merge
    pipe = Pipeline(
        where, schedule=setting.name, stages=mine, generator=spec_of(model.decoder, states),
        hidden=HIDDEN, deadline_s=40, run=StageOptions(merge=merges, **dict(setting.options)),
        **made,
    )  # fmt: skip
    return pipe, mine


def _merge(embeddings: Any, features: Any, fields: Any) -> Any:
    return merge(embeddings, features, fields)


def samples_of(setting: Drawing, seed: int) -> list[list[Sample]]:
    """Return every replica's microbatches."""
    replicas = range(setting.backbone[0])
    return [make_samples(setting.microbatches, seed + r, torch.float32) for r in replicas]


def given(pipe: Pipeline, setting: Drawing, every: list[list[Sample]], total: int) -> Any:
    """Return the steps that a rank is given, with the fields that it needs alone."""
    where = setting.where
    needed = pipe.fields(pipe.rank)
    replicas = where.replicas(pipe.rank) if isinstance(where, Units) else [pipe.replica]
    steps = [_loader_step(every[replica], total, needed) for replica in replicas]
    return steps if len(steps) > 1 else steps[0]


def _loader_step(samples: list[Sample], total: int, needed: frozenset[str]) -> SimpleNamespace:
    def fields(number: int, sample: Sample) -> dict[str, Any]:
        found = {FIELDS[name]: value for name, value in vars(sample).items()}
        found |= {"marks": marks_of(sample, number), "pictures": pictures_of(sample, number)}
        return {name: value for name, value in found.items() if name in needed}

    return SimpleNamespace(
        microbatches=[fields(number, sample) for number, sample in enumerate(samples)],
        infos=[
            SimpleNamespace(step_label_tokens=total, step_samples=1, costs=costs_of(s, number))
            for number, s in enumerate(samples)
        ],
    )
