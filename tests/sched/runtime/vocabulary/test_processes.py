"""Vocabulary layers over real processes: both layers, tied or not, and their options."""

import copy
from dataclasses import dataclass, field

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from counterpoise.sched import schedule
from counterpoise.sched.runtime import LossOptions, Pipeline, VocabParallel
from counterpoise.sched.runtime.vocabulary.shard import VocabularyShard
from tests.sched.runtime.cases import ALGORITHMS, loader_step
from tests.sched.runtime.models import HIDDEN, WORDS, Batches, Block
from tests.sched.runtime.pool import WORLD, Pool, make_mesh
from tests.sched.runtime.vocabulary.cases import OPTIONS
from tests.sched.runtime.vocabulary.one_process import error, labelled, loss_of


@dataclass(frozen=True)
class Setting:
    """One run: a schedule on `ranks` processes; the other processes are replicas."""

    name: str
    ranks: int = 4
    inputs: bool = True
    tied: bool = False
    keep: str = "logits"
    loss: LossOptions = field(default_factory=LossOptions)


class Whole(nn.Module):
    """The model in one piece; pipelines take it apart."""

    def __init__(self, setting: Setting, stages: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(WORDS, HIDDEN)
        self.blocks = nn.Sequential(*(Block() for _ in range(stages)))
        self.head = nn.Linear(HIDDEN, WORDS, bias=not setting.tied)
        if setting.tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(ids)))


def make_pipeline(mesh: DeviceMesh, setting: Setting, model: Whole) -> Pipeline:
    """A pipeline of the model's blocks, with the embedding where the setting has it."""
    options = {"inputs": True} if setting.inputs else {}
    program = schedule(setting.name, ranks=setting.ranks, microbatches=8, **options)
    stages: dict[int, nn.Module] = dict(enumerate(model.blocks))
    if not setting.inputs:
        stages[0] = nn.Sequential(model.embedding, stages[0])
    return Pipeline(
        mesh,
        schedule=setting.name,
        options=options,
        stages={s: stages[s] for s in program.stages_of(mesh["pp"].get_local_rank())},
        vocabulary=VocabParallel(
            model.head,
            model.embedding if setting.inputs else None,
            algorithm=ALGORITHMS[setting.name.rpartition("-")[2]],
            keep=setting.keep,  # type: ignore[arg-type]
            loss=setting.loss,
            lm_head_name="head",
        ),
        hidden=HIDDEN,
        deadline_s=60,
    )


def make_every(setting: Setting) -> list[Batches]:
    """Batches of all replicas; some tokens have no label, and one microbatch has no token."""
    draw = torch.Generator().manual_seed(0)
    every = []
    for _ in range(WORLD // setting.ranks):
        sizes = torch.randint(4, 9, (8,), generator=draw).tolist()
        sizes[1] = 0
        ids = [torch.randint(WORDS, (n,), generator=draw) for n in sizes]
        labels = [words.roll(-1) for words in ids]
        for label in labels:
            label[::3] = setting.loss.ignore_index
        every.append(Batches(ids, labels))
    return every


def train_whole(model: Whole, every: list[Batches], loss: LossOptions, count: int) -> float:
    """Leave one process's gradients on the model, and return the loss."""
    total = 0.0
    for batches in every:
        for ids, labels in zip(batches.ids, batches.labels, strict=True):
            found = loss_of(model(ids), labelled(labels, 1 / count), loss)
            found.backward()
            total += found.item()
    return total


def gather_gradients(mesh: DeviceMesh, setting: Setting, pipe: Pipeline, model: Whole) -> None:
    """Put the gradients of all ranks on the model, in every process."""
    (shard,) = (module for module in pipe.modules() if isinstance(module, VocabularyShard))
    own: dict[str, Tensor] = {}
    for name, parameter, sharding in shard.named_rows():
        assert parameter.grad is not None
        own[name] = parameter.grad[: sharding.real]
    blocks = {name: p.grad for name, p in model.named_parameters()}
    found: list[tuple[dict[str, Tensor], dict[str, Tensor | None]]] = [({}, {})] * setting.ranks
    dist.all_gather_object(found, (own, blocks), group=mesh["pp"].get_group())
    for name, parameter in model.named_parameters():
        if name in own:
            parameter.grad = torch.cat([part[name] for part, _ in found])
        else:
            (parameter.grad,) = (part[name] for _, part in found if part[name] is not None)


def run_setting(_rank: int, setting: Setting) -> dict[str, float]:
    """Return the relative errors of loss and gradients against double precision."""
    mesh = make_mesh(setting.ranks)
    stages = schedule(setting.name, ranks=setting.ranks, microbatches=8).stages
    model = Whole(setting, stages)
    exact = copy.deepcopy(model).double()
    every = make_every(setting)
    labels = torch.cat([label for batches in every for label in batches.labels])
    count = int((labels != setting.loss.ignore_index).sum())
    pipe = make_pipeline(mesh, setting, model)
    try:
        loss = pipe.step(loader_step(every[mesh["dp"].get_local_rank()], count)).loss.item()
        gather_gradients(mesh, setting, pipe, model)
    finally:
        pipe.close()
    wanted = train_whole(exact, every, setting.loss, count)
    pairs = zip(model.named_parameters(), exact.parameters(), strict=True)
    found = {name: error(ours.grad, theirs.grad) for (name, ours), theirs in pairs}
    return {"loss": abs(loss - wanted) / abs(wanted), **found}


SETTINGS = [
    Setting("1f1b-alg2", tied=True),
    Setting("1f1b-alg1", keep="nothing", loss=OPTIONS["all"]),
    Setting("1f1b-naive", ranks=2, loss=OPTIONS["smoothing"]),
    Setting("1f1b-interlaced", inputs=False, keep="nothing", loss=OPTIONS["softcap"]),
    Setting("v-half-alg2", ranks=2, tied=True, loss=OPTIONS["z-loss"]),
    Setting("v-half-naive", tied=True, keep="nothing", loss=OPTIONS["all"]),
    Setting("interleaved-alg2", keep="nothing", loss=OPTIONS["smoothing and softcap"]),
    Setting("interleaved-alg1", ranks=2, tied=True),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: f"{s.name}-{s.ranks}")
def test_loss_and_gradients_are_within_1e5_of_double_precision(
    pool: Pool, setting: Setting
) -> None:
    for found in pool.run(run_setting, setting):
        assert max(found.values()) <= 1e-5, found
