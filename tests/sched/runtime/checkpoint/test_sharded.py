"""Stages that FSDP2 shards are saved whole, and load on layouts with and without sharding."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from counterpoise.sched import schedule
from counterpoise.sched.runtime import Pipeline, load_checkpoint, save_checkpoint
from tests.sched.runtime.cases import loader_step, mean_loss, whole
from tests.sched.runtime.models import HIDDEN, WORDS, Batches, Block, NamedStage, make_batches
from tests.sched.runtime.pool import make_mesh

LAYERS, MICROBATCHES = 4, 8


def make_stage(stage: int, stages: int, seed: int) -> NamedStage:
    torch.manual_seed(1000 * seed)
    embedding, head = nn.Embedding(WORDS, HIDDEN), nn.Linear(HIDDEN, WORDS)
    return NamedStage(embedding, [Block() for _ in range(LAYERS)], head, stage, stages)


class Job:
    """A rank of a pipeline with its optimizer."""

    def __init__(self, name: str, ranks: int, seed: int, *, sharded: bool) -> None:
        mesh = make_mesh(ranks)
        program = schedule(name, ranks=ranks, microbatches=MICROBATCHES)
        own = program.stages_of(mesh["pp"].get_local_rank())
        stages = {stage: make_stage(stage, program.stages, seed) for stage in own}
        if sharded:
            for stage in stages.values():
                for layer in stage.layers.values():
                    fully_shard(layer, mesh=mesh["dp"])
                fully_shard(stage, mesh=mesh["dp"])
        self.replica, self.replicas = mesh["dp"].get_local_rank(), mesh["dp"].size()
        self.pipe = Pipeline(
            mesh, schedule=name, stages=stages, hidden=HIDDEN, loss=mean_loss, deadline_s=40
        )
        self.optimizer = torch.optim.AdamW(self.pipe.parameters(), lr=0.05)

    def step(self, number: int) -> float:
        """Train on a global batch, which is the same for any number of replicas."""
        batches = make_batches(MICROBATCHES, equal=False, seed=number)
        mine = slice(self.replica, None, self.replicas)
        own = Batches(batches.ids[mine], batches.labels[mine])
        loss = self.pipe.step(loader_step(own, sum(map(len, batches.ids)))).loss
        self.pipe.clip_grad_norm_(1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss)

    def weights(self) -> dict[str, Tensor]:
        return {
            name: whole(value.detach()).clone()
            for module in self.pipe.modules()
            for name, value in module.named_parameters()
        }


def train_and_save(_rank: int, folder: str) -> tuple[float, dict[str, Tensor]]:
    """Train sharded stages, save, and return the loss and the weights of the step after that."""
    job = Job("zb-h1", 2, seed=0, sharded=True)
    for number in range(2):
        job.step(number)
    save_checkpoint(Path(folder, "step-2"), job.pipe, job.optimizer, {"steps": 2})
    found = job.step(2), job.weights()
    job.pipe.close()
    return found


def load_and_train(
    _rank: int, folder: str, name: str, ranks: int, sharded: bool
) -> tuple[float, dict[str, Tensor]]:
    job = Job(name, ranks, seed=1, sharded=sharded)
    extra = load_checkpoint(Path(folder, "step-2"), job.pipe, job.optimizer)
    found = job.step(extra["steps"]), job.weights()
    job.pipe.close()
    return found


@pytest.fixture(scope="module")
def saved(pool, tmp_path_factory):
    """A checkpoint of sharded stages, with the loss and all weights of the step after it."""
    folder = str(tmp_path_factory.mktemp("sharded"))
    answers = pool.run(train_and_save, folder)
    return folder, answers[0][0], {name: w for _, own in answers for name, w in own.items()}


@pytest.mark.parametrize(
    ("name", "ranks", "sharded"), [("zb-h1", 2, True), ("v-half", 2, True), ("1f1b", 4, False)]
)
def test_sharded_stages_go_on_on_any_layout(pool, saved, name, ranks, sharded) -> None:
    folder, loss, expected = saved
    names = set()
    for found, weights in pool.run(load_and_train, folder, name, ranks, sharded):
        assert found == pytest.approx(loss, rel=1e-5)
        for key, value in weights.items():
            torch.testing.assert_close(value, expected[key], rtol=1e-4, atol=1e-6)
        names |= set(weights)
    assert names == set(expected)


def test_a_checkpoint_of_sharded_stages_holds_whole_tensors(saved) -> None:
    folder, _, _ = saved
    files = sorted(Path(folder, "step-2").glob("rank-*.pt"))
    parts = [torch.load(file, weights_only=True) for file in files]
    assert [set(part["model"]) & {"embedding.weight"} for part in parts] == [
        {"embedding.weight"},
        set(),
    ]
    shape = (WORDS, HIDDEN)
    assert parts[0]["model"]["embedding.weight"].shape == shape
    assert parts[0]["optimizer"]["embedding.weight"]["exp_avg"].shape == shape
