"""What the processes of the pool run: pipelines with encoder passes, beside one process."""

import copy
import itertools
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from counterpoise.sched import (
    EncoderTimes,
    Program,
    parse_program,
    schedule,
    unit_costs,
    with_encoders,
)
from counterpoise.sched.ir.kinds import kind, layer_kind
from counterpoise.sched.runtime import HiddenStates, Pipeline, StageOptions
from tests.sched.runtime.cases import errors_of, loss_or_vocabulary
from tests.sched.runtime.encoders.models import (
    Model,
    Sample,
    encoded,
    inner_kernels,
    make_model,
    make_samples,
    merge,
    offer_points,
    reference,
    specs_of,
)
from tests.sched.runtime.models import HIDDEN
from tests.sched.runtime.pool import make_mesh
from tests.sched.runtime.tensor_parallel import divide
from tests.sched.runtime.training import train_beside

FIELDS = {"ids": "input_ids", "labels": "labels", "pixels": "pixel_values", "sounds": "waveforms"}


@dataclass(frozen=True)
class Setting:
    """A schedule on `ranks` processes with encoder pipelines of `width`.

    `replicas`: of the pipeline, as many as there are processes for by default. `layers`: of each
    encoder on a rank. `frozen`: the encoders that are. `text`: of a program to run instead.
    `stage_merges`: whether the first stage gets the features, and no function. `divided`: whether
    the embedding is divided over the ranks, too. `tp`: processes of each rank, which divide its
    modules. `dtype`: of all weights and inputs. `inside`: whether encoder passes run inside others.
    """

    name: str
    ranks: int = 4
    width: int = 1
    layers: tuple[int, ...] = (2,)
    frozen: tuple[int, ...] = ()
    replicas: int | None = None
    text: str = ""
    stage_merges: bool = False
    divided: bool = False
    options: tuple[tuple[str, Any], ...] = ()
    tp: int = 1
    dtype: torch.dtype = torch.float32
    inside: bool = False

    def program(self, ranks: int, microbatches: int) -> Program:
        if self.text:
            return parse_program(self.text)
        return encoded(self.name, ranks, microbatches, width=self.width, layers=self.layers)

    def in_gaps(self) -> "Setting":
        """Return the setting with the encoders' passes in the schedule's gaps.

        Its program is a text, so that compiling the search is one process' work.
        """
        count, inputs = max(4, 2 * self.ranks), {"inputs": True} if self.divided else {}
        base = schedule(self.name, ranks=self.ranks, microbatches=count, **inputs)
        times = [EncoderTimes((3,) * n, (5,) * n) for n in self.whole_layers()]
        inside = inner_kernels(1) if self.inside else None
        costs = unit_costs(10, 20, 4)
        made = with_encoders(base, costs, times, width=self.width, inside=inside)
        return replace(self, text=str(made))

    def whole_layers(self) -> list[int]:
        return [self.width * count for count in self.layers]

    def model(self, stages: int) -> Model:
        made = make_model(self.whole_layers(), stages, self.dtype, merges=self.stage_merges)
        for encoder in self.frozen:
            for layer in made.encoders[encoder]:
                layer.requires_grad_(False)
        return made


def loader_step(samples: list[Sample], total: int) -> SimpleNamespace:
    return SimpleNamespace(
        microbatches=[{FIELDS[name]: value for name, value in vars(s).items()} for s in samples],
        infos=[
            SimpleNamespace(step_label_tokens=total, step_samples=1, costs=s.costs) for s in samples
        ],
    )


def make_pipe(setting: Setting, model: Model) -> tuple[Pipeline, dict[int, nn.Module]]:
    """Return a pipeline of the model, and this rank's stages."""
    mesh = make_mesh(setting.ranks, setting.replicas, setting.tp)
    own = mesh["pp"].get_local_rank()
    base = setting.program(setting.ranks, 2 * setting.ranks)
    made = loss_or_vocabulary(base, model.stages, setting.name)
    if setting.divided:
        words, *body = model.stages[0].children()
        assert isinstance(words, nn.Embedding)
        made["vocabulary"] = replace(made["vocabulary"], embedding=words)
        model.stages[0] = nn.Sequential(*body)
    mine = {s: model.stages[s] for s in base.stages_of(own)}
    if setting.inside:
        offer_points(mine.values())
    if setting.tp > 1:
        divide(model, mesh["tp"])
    merges = None if setting.stage_merges else merge
    pipe = Pipeline(
        mesh, schedule=setting.program, stages=mine,
        encoders=specs_of(model, setting.dtype, FIELDS),
        hidden=HiddenStates(HIDDEN, dtype=setting.dtype), deadline_s=40,
        run=StageOptions(merge=merges, **dict(setting.options)), **made,
    )  # fmt: skip
    return pipe, mine


def run_setting(rank: int, setting: Setting, steps: int = 2) -> dict[str, float]:
    """Train some steps both ways; return the largest relative errors."""
    del rank
    stages = setting.program(setting.ranks, 2 * setting.ranks).stages
    model = setting.model(stages)
    expected = copy.deepcopy(model)
    pipe, mine = make_pipe(setting, model)
    try:
        return train_beside(
            pipe,
            [p for piece in expected.pieces() for p in piece.parameters()],
            steps,
            samples=partial(_samples, setting),
            given=lambda every, total: loader_step(every[pipe.replica], total),
            reference=partial(reference, expected),
            errors=partial(
                errors_of, pipe, mine, _stages(expected, setting), model.beside(expected)
            ),
            check=partial(_check_order, pipe, setting),
        )
    finally:
        pipe.close()


def _samples(setting: Setting, seed: int) -> list[list[Sample]]:
    """Return every replica's microbatches."""
    count = setting.program(setting.ranks, 2 * setting.ranks).microbatches
    replicas = range(make_mesh(setting.ranks, setting.replicas, setting.tp)["dp"].size())
    return [make_samples(count, seed + r, setting.dtype) for r in replicas]


def _stages(expected: Model, setting: Setting) -> list[nn.Module]:
    """Return one process' stages as the pipeline has them."""
    if not setting.divided:
        return expected.stages
    return [nn.Sequential(*list(expected.stages[0].children())[1:]), *expected.stages[1:]]


def _check_order(pipe: Pipeline, setting: Setting) -> None:
    """Check that the measured timeline has the plan's passes in its order, on this rank."""
    program = setting.program(setting.ranks, 2 * setting.ranks)
    ends = [0, *itertools.accumulate(setting.layers)]
    skipped = {layer_kind("EB", n) for e in setting.frozen for n in range(ends[e], ends[e + 1])}
    own = [item for item in program.ranks[pipe.rank] if item.kind not in skipped]
    # What is done once a step, such as UNSHARD, is the modules' and the training loop's.
    planned = [item for item in own if not kind(item.kind).once]
    row = [slot.what for slot in pipe.timeline().ranks[pipe.rank]]
    # Lowering adds the continuations of barriers.
    assert [item for item in row if item.kind != "C"] == planned
