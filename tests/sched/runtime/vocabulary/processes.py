"""What the processes of the pool run: pipelines with vocabulary passes, beside one process."""

import copy
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from counterpoise.sched import schedule
from counterpoise.sched.runtime import LossOptions, Pipeline, VocabParallel
from counterpoise.sched.runtime.vocabulary.shard import VocabularyShard, join_state_dicts
from tests.sched.runtime import models
from tests.sched.runtime.cases import loader_step
from tests.sched.runtime.pool import WORLD, make_mesh
from tests.sched.runtime.vocabulary.one_process import error, l2_error, labelled, loss_of

ALGORITHMS = {"interlaced": "alg1"}


@dataclass(frozen=True)
class Setting:
    """One run: a schedule on `ranks` processes; the other processes are replicas."""

    name: str
    ranks: int = 4
    inputs: bool = True
    tied: bool = False
    keep: str = "logits"
    loss: LossOptions = field(default_factory=LossOptions)
    dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    hidden: int = 8
    words: int = 11
    longest: int = 9

    @property
    def options(self) -> dict[str, bool]:
        return {"inputs": True} if self.inputs else {}


class Whole(nn.Module):
    """The model in one piece; pipelines take it apart."""

    def __init__(self, setting: Setting, stages: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        models.HIDDEN, models.WORDS = setting.hidden, setting.words
        self.embedding = nn.Embedding(setting.words, setting.hidden)
        self.blocks = nn.Sequential(*(models.Block() for _ in range(stages)))
        self.head = nn.Linear(setting.hidden, setting.words, bias=not setting.tied)
        if setting.tied:
            self.head.weight = self.embedding.weight
        self.to(setting.dtype)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(ids)))


def make_pipeline(mesh: DeviceMesh, setting: Setting, model: Whole) -> Pipeline:
    """A pipeline of the model's blocks, with the embedding where the setting has it."""
    program = schedule(setting.name, ranks=setting.ranks, microbatches=8, **setting.options)
    stages: dict[int, nn.Module] = dict(enumerate(model.blocks))
    if not setting.inputs:
        stages[0] = nn.Sequential(model.embedding, stages[0])
    form = setting.name.rpartition("-")[2]
    return Pipeline(
        mesh,
        schedule=setting.name,
        options=setting.options,
        stages={s: stages[s] for s in program.stages_of(mesh["pp"].get_local_rank())},
        vocabulary=VocabParallel(
            model.head,
            model.embedding if setting.inputs else None,
            algorithm=ALGORITHMS.get(form, form),  # type: ignore[arg-type]
            keep=setting.keep,  # type: ignore[arg-type]
            loss=setting.loss,
            lm_head_name="head",
        ),
        hidden=setting.hidden,
        dtype=setting.dtype,
        autocast=setting.autocast,
        deadline_s=60,
    )


def make_every(setting: Setting, seed: int = 0) -> list[models.Batches]:
    """Batches of all replicas; some tokens have no label, and one microbatch has no token."""
    draw = torch.Generator().manual_seed(seed)
    every = []
    for _ in range(WORLD // setting.ranks):
        sizes = torch.randint(setting.longest // 2, setting.longest, (8,), generator=draw).tolist()
        sizes[1] = 0
        ids = [torch.randint(setting.words, (n,), generator=draw) for n in sizes]
        labels = [words.roll(-1) for words in ids]
        for label in labels:
            label[::3] = setting.loss.ignore_index
        every.append(models.Batches(ids, labels))
    return every


def count_of(every: list[models.Batches], setting: Setting) -> int:
    labels = [label for batches in every for label in batches.labels]
    return int(sum((label != setting.loss.ignore_index).sum() for label in labels))


def train_whole(model: Whole, every: list[models.Batches], setting: Setting) -> float:
    """Leave one process's gradients on the model, and return the loss."""
    weight, total = 1 / count_of(every, setting), 0.0
    precision = setting.autocast
    for batches in every:
        for ids, labels in zip(batches.ids, batches.labels, strict=True):
            cast = torch.autocast("cpu", precision) if precision else nullcontext()
            with cast:
                logits = model(ids)
            loss = loss_of(logits, labelled(labels, weight), setting.loss)
            loss.backward()
            total += loss.item()
    return total


def shard_of(pipe: Pipeline) -> VocabularyShard:
    (found,) = (module for module in pipe.modules() if isinstance(module, VocabularyShard))
    return found


def gather_gradients(mesh: DeviceMesh, setting: Setting, pipe: Pipeline, model: Whole) -> None:
    """Put the gradients of all ranks on the model, in every process."""
    shard = shard_of(pipe)
    own: dict[str, Tensor | None] = {}
    for layer, rows in shard.layers():
        real = rows.sharding.real(shard.rank)
        for name, parameter in rows.named_parameters():
            assert parameter.grad is not None
            own[f"{layer}.{name}"] = parameter.grad[:real]
    blocks = {name: p.grad for name, p in model.named_parameters() if "lm_head" not in name}
    found: list[tuple[dict[str, Tensor], dict[str, Tensor | None]]] = [({}, {})] * setting.ranks
    dist.all_gather_object(found, (own, blocks), group=mesh["pp"].get_group())
    joined = join_state_dicts([part for part, _ in found])
    for name, parameter in model.named_parameters():
        layer, _, rest = name.partition(".")
        key = f"{'lm_head' if layer == 'head' else layer}.{rest}"
        grads = [part[name] for _, part in found if part[name] is not None]
        parameter.grad = joined.get(key, grads[0] if grads else None)
        assert parameter.grad is not None, name


def run_setting(rank: int, setting: Setting) -> dict[str, float]:
    """Return the relative errors of loss and gradients against double precision.

    In low precision: their L2 errors over those of one process in that precision.
    """
    before = models.HIDDEN, models.WORDS
    mesh = make_mesh(setting.ranks)
    stages = schedule(setting.name, ranks=setting.ranks, microbatches=8).stages
    try:
        model = Whole(setting, stages)
        low = setting.autocast or setting.dtype != torch.float32
        one, exact = copy.deepcopy(model), copy.deepcopy(model).double()
        every = make_every(setting)
        pipe = make_pipeline(mesh, setting, model)
        try:
            replica = mesh["dp"].get_local_rank()
            step = loader_step(every[replica], count_of(every, setting))
            loss = pipe.step(step).loss.item()
            gather_gradients(mesh, setting, pipe, model)
        finally:
            pipe.close()
        plain = Setting(**{**vars(setting), "autocast": None})
        wanted = train_whole(exact, every, plain)
        found = {"loss": abs(loss - wanted) / abs(wanted)}
        if low:
            train_whole(one, every, setting)
        pairs = zip(model.named_parameters(), exact.parameters(), one.parameters(), strict=True)
        for (name, a), b, c in pairs:
            found[name] = error(a.grad, b.grad)
            if low:
                found[name] = l2_error(a.grad, b.grad) / l2_error(c.grad, b.grad)
        return found
    finally:
        models.HIDDEN, models.WORDS = before


def save_and_load(rank: int, tied: bool) -> list[bool]:
    """Train at p = 4, save, load at p = 2 and into the plain model; return what is bit-equal."""
    four = Setting("1f1b-alg2", tied=tied)
    mesh = make_mesh(4)
    model = Whole(four, 4)
    pipe = make_pipeline(mesh, four, model)
    try:
        every = make_every(four)
        pipe.step(loader_step(every[0], count_of(every, four)))
        torch.optim.AdamW(shard_of(pipe).parameters(), lr=0.1).step()
        saved = joined_state(mesh, pipe)
    finally:
        pipe.close()
    plain = Whole(four, 4)
    missing, unexpected = plain.load_state_dict(saved, strict=False)
    same = [not unexpected, all("blocks" in name for name in missing)]
    same += [torch.equal(plain.state_dict()[name], saved[name]) for name in saved]
    two = Setting("1f1b-alg2", ranks=2, tied=tied)
    mesh = make_mesh(2)
    pipe = make_pipeline(mesh, two, Whole(two, 2))
    try:
        shard_of(pipe).load_state_dict(saved)
        again = joined_state(mesh, pipe)
    finally:
        pipe.close()
    return [*same, set(again) == set(saved), *(torch.equal(again[n], saved[n]) for n in saved)]


def joined_state(mesh: DeviceMesh, pipe: Pipeline) -> dict[str, Tensor]:
    group = mesh["pp"].get_group()
    parts: list[dict[str, Tensor]] = [{}] * group.size()
    dist.all_gather_object(parts, dict(shard_of(pipe).state_dict()), group=group)
    return join_state_dicts(parts)
