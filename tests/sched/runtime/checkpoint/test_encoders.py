"""Checkpoints of pipelines with encoders: any layout goes on as one process does."""

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from counterpoise.sched import Program
from counterpoise.sched.runtime import (
    Pipeline,
    StageOptions,
    load_checkpoint,
    resumed_schedule,
    save_checkpoint,
)
from tests.sched.runtime.encoders.models import (
    ENCODED,
    INPUTS,
    Layer,
    Model,
    encoded,
    make_samples,
    merge,
    reference,
    specs_of,
)
from tests.sched.runtime.encoders.processes import FIELDS, loader_step
from tests.sched.runtime.models import HIDDEN, WORDS, Block, NamedStage, total_loss
from tests.sched.runtime.pool import Pool, make_mesh

pytestmark = pytest.mark.slow

BLOCKS, MICROBATCHES = 8, 8
LAYERS = {"vision": 4, "audio": 2}


class Layout(NamedTuple):
    """A schedule on so many ranks, with encoder pipelines of `width`."""

    name: str
    ranks: int
    width: int

    def program(self, ranks: int, microbatches: int) -> Program:
        assert ranks == self.ranks
        layers = [count // self.width for count in LAYERS.values()]
        return encoded(self.name, ranks, microbatches, width=self.width, layers=layers)


class Whole(nn.Module):
    """The model under the names that checkpoints have."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(WORDS, HIDDEN)
        self.layers = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.lm_head = nn.Linear(HIDDEN, WORDS)
        self.encoders = nn.ModuleDict()
        for name, count in LAYERS.items():
            widths = [INPUTS, *[ENCODED] * (count - 1), HIDDEN]
            made = itertools.starmap(Layer, itertools.pairwise(widths))
            self.encoders[name] = nn.ModuleList(made)
        # The lowest layer of the second encoder is frozen.
        self.encoders["audio"].get_submodule("0").requires_grad_(False)

    def pieces(self) -> Model:
        """Return the model as what one process computes with."""
        encoders = [list(layers.children()) for layers in self.encoders.children()]
        return Model(encoders, [nn.Sequential(self.embedding, *self.layers, self.lm_head)])

    def stage(self, at: int, of: int) -> NamedStage:
        return NamedStage(self.embedding, [*self.layers], self.lm_head, at, of)


def optimizer_of(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def one_process(steps: int) -> Whole:
    model = Whole(0)
    pieces, optimizer = model.pieces(), optimizer_of(model.parameters())
    for step in range(steps):
        reference(pieces, make_samples(MICROBATCHES, step, torch.float32))
        optimizer.step()
        optimizer.zero_grad()
    return model


def train(
    _rank: int, layout: Layout, folder: Path, steps: range, resume: bool, keep_plan: bool
) -> float:
    """Train some steps, from a checkpoint or from scratch; return the worst relative error.

    A job that goes on starts with other weights than were saved. `keep_plan`: it makes no plan.
    """
    mesh = make_mesh(layout.ranks)
    model = Whole(int(resume))
    schedule: Any = layout.program
    if keep_plan:
        schedule = resumed_schedule(folder / f"step-{steps.start}", refuse)
    program = layout.program(layout.ranks, 2 * layout.ranks)
    stages = program.stages_of(mesh["pp"].get_local_rank())
    pipe = Pipeline(
        mesh, schedule=schedule,
        stages={stage: model.stage(stage, program.stages) for stage in stages},
        encoders=specs_of(model.pieces(), fields=FIELDS), run=StageOptions(merge=merge),
        hidden=HIDDEN, loss=total_loss, deadline_s=40,
    )  # fmt: skip
    try:
        optimizer = optimizer_of(pipe.parameters())
        if resume:
            extra = load_checkpoint(folder / f"step-{steps.start}", pipe, optimizer)
            assert extra == {"steps": steps.start}
        own = MICROBATCHES // mesh["dp"].size()
        for step in steps:
            samples = make_samples(MICROBATCHES, step, torch.float32)
            total = sum(len(sample.ids) for sample in samples)
            pipe.step(loader_step(samples[pipe.replica * own :][:own], total))
            optimizer.step()
            optimizer.zero_grad()
        save_checkpoint(folder / f"step-{steps.stop}", pipe, optimizer, {"steps": steps.stop})
        expected = one_process(steps.stop).state_dict()
        found = pipe.state(optimizer).model
        errors = [(found[name] - expected[name]).norm() / expected[name].norm() for name in found]
        return float(max(errors))
    finally:
        pipe.close()


def refuse(ranks: int, microbatches: int) -> Program:
    raise AssertionError(f"a plan for {ranks} ranks and {microbatches} microbatches was saved")


BEFORE = Layout("1f1b", 4, 2)


@pytest.fixture(scope="module")
def saved(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoders")
    assert max(pool.run(train, BEFORE, folder, range(2), False, False)) <= 1e-5
    return folder


@pytest.mark.parametrize(
    ("layout", "keep_plan"),
    [
        (Layout("zbv", 2, 1), False),
        (BEFORE, True),
        pytest.param(Layout("interleaved", 2, 2), False, marks=pytest.mark.long),
        pytest.param(Layout("1f1b", 1, 1), False, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_a_job_with_encoders_goes_on_as_one_process(
    pool: Pool, saved: Path, tmp_path: Path, layout: Layout, keep_plan: bool
) -> None:
    (tmp_path / "step-2").symlink_to(saved / "step-2")
    assert max(pool.run(train, layout, tmp_path, range(2, 4), True, keep_plan)) <= 1e-5


def test_each_layer_is_saved_once_under_the_whole_models_names(saved: Path) -> None:
    files = [
        torch.load(file, weights_only=True) for file in sorted((saved / "step-2").glob("rank-*.pt"))
    ]
    names = [name for file in files for name in file["model"]]
    assert sorted(names) == sorted(Whole(0).state_dict())
    trained = [name for name, p in Whole(0).named_parameters() if p.requires_grad]
    kept = [name for file in files for name in file["optimizer"]]
    assert sorted(kept) == sorted(trained)
