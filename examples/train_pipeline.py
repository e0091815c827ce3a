"""Train a language model on a pipeline, with its vocabulary layers divided over all ranks.

Run: torchrun --standalone --nproc-per-node 2 examples/train_pipeline.py --pp 2 --steps 6

With `--nproc-per-node 4` they are two pipelines of two ranks, or without `--pp` one of four.
`--schedule` takes the names that `counterpoise schedule list` prints, `--data` WebDataset shards.
With `--checkpoints FOLDER` a job that was killed goes on where it was saved, on whatever layout:
the losses stay the same.
"""

import argparse
import os
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from counterpoise.loader import Balance, DataLoader, Step
from counterpoise.sched import Program, schedule
from counterpoise.sched.runtime import (
    Pipeline,
    StageOptions,
    StepLoss,
    VocabParallel,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)
from counterpoise.tools.demo.data import ensure_demo_data
from counterpoise.tools.demo.model import TransformerBlock
from counterpoise.workers import TarDataset

WIDTH, HEADS, LAYERS, VOCABULARY = 64, 4, 8, 16_384
LONGEST = 256  # tokens of a sample
MICROBATCHES = 8  # of each pipeline and step
TEXTS = 256  # samples of the demo's data


class Words:
    """Makes tokens of a sample's text: each word gets a number from its hash."""

    deterministic = True

    def __call__(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Return the sample's tokens, which are its labels, too."""
        about = raw["json"]
        text = about.get("document") or " ".join(turn["value"] for turn in about["conversations"])
        ids = [zlib.crc32(word.encode()) % VOCABULARY for word in text.split()[:LONGEST]]
        tokens = np.array(ids or [0], np.int32)
        return {"input_ids": tokens, "labels": tokens}


class LanguageModel(nn.Module):
    """The whole model, of which each rank keeps its stages."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            TransformerBlock(WIDTH, HEADS, causal=True) for _ in range(LAYERS)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)


class Stage(nn.Module):
    """A stage: some layers, called as in the whole model, so that any layout can load them."""

    def __init__(self, model: LanguageModel, stage: int, stages: int, divided: bool) -> None:
        super().__init__()
        each, first, last = LAYERS // stages, stage == 0, stage == stages - 1
        own = range(stage * each, (stage + 1) * each)
        self.embedding = model.embedding if first and not divided else None
        self.layers = nn.ModuleDict({str(number): model.layers[number] for number in own})
        self.norm = model.norm if last else None
        self.lm_head = model.lm_head if last and not divided else None

    def forward(self, x: Tensor, cu_seq_lens: Tensor) -> Tensor:
        """Map tokens or hidden states to hidden states (tokens, WIDTH) or logits."""
        x = x if self.embedding is None else self.embedding(x.flatten())
        x, bounds = x[None], tuple(cu_seq_lens.tolist())
        for layer in self.layers.values():
            x = layer(x, bounds)
        x = x[0] if self.norm is None else self.norm(x[0])
        return x if self.lm_head is None else self.lm_head(x)


def sum_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum over label tokens."""
    return F.cross_entropy(logits, labels.flatten(), reduction="sum")


def make_pipeline(mesh: DeviceMesh, name: str) -> Pipeline:
    """Return this rank's part of the model, in the schedule's places."""
    torch.manual_seed(0)
    model = LanguageModel()
    program: Program = schedule(name, ranks=mesh["pp"].size(), microbatches=MICROBATCHES)
    divided = name.endswith("-alg2")
    stages = {
        stage: Stage(model, stage, program.stages, divided)
        for stage in program.stages_of(mesh["pp"].get_local_rank())
    }
    vocabulary = None
    if divided:
        vocabulary = VocabParallel(model.lm_head, model.embedding, keep="nothing")
    return Pipeline(
        mesh,
        schedule=partial(schedule, name, inputs=True) if divided else name,
        stages=stages,
        hidden=WIDTH,
        run=StageOptions(extras=("cu_seq_lens",)),
        loss=StepLoss(None if divided else sum_loss, shift_labels=True),
        vocabulary=vocabulary,
        deadline_s=120,
    )


def demo_data() -> str:
    """Return the pattern of the demo's shards, which one process of each host makes."""
    if int(os.environ.get("LOCAL_RANK", "0")) == 0:
        ensure_demo_data(samples=TEXTS, shards=2)
    distributed.barrier()
    return ensure_demo_data(samples=TEXTS, shards=2)


def count_tokens(sample: dict[str, Any]) -> dict[str, int]:
    """Return what a sample costs: its tokens, of which nothing predicts the first."""
    tokens = len(sample["input_ids"])
    return {"tokens": tokens, "label_tokens": tokens - 1}


def make_loader(mesh: DeviceMesh, pattern: str) -> DataLoader:
    """Return a loader that gives all ranks of a pipeline the same samples, in even packs."""
    return DataLoader(
        TarDataset(pattern, Words()),
        num_workers=1,
        shuffle=True,
        ranks=mesh,
        cost=count_tokens,
        balance=Balance(
            budgets={"tokens": 2048}, samples_per_step=32, accumulate=MICROBATCHES, layout="packed"
        ),
    )


def endless(loader: DataLoader) -> Iterator[Step]:
    """Yield the steps of one epoch after another."""
    while True:
        yield from loader.steps()


def train(mesh: DeviceMesh, given: argparse.Namespace) -> Iterator[str]:
    """Train, and yield a line for each step."""
    pipe = make_pipeline(mesh, given.schedule)
    loader = make_loader(mesh, given.data or demo_data())
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=3e-3)
    done = 0
    if given.checkpoints and (newest := newest_checkpoint(given.checkpoints)):
        saved = load_checkpoint(newest, pipe, optimizer)
        loader.load_state_dict(saved["loader"])
        done = saved["steps"]
    try:
        for number, step in zip(range(done, given.steps), endless(loader), strict=False):
            result = pipe.step(step)
            norm = pipe.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
            batch = fingerprint(mesh, step)
            yield f"step {number}: loss {result.loss:.6f}, gradient norm {norm:.3f}, {batch}"
            if given.checkpoints and (number + 1) % given.save_every == 0:
                state = {"steps": number + 1, "loader": loader.state_dict()}
                save_checkpoint(given.checkpoints / f"step-{number + 1}", pipe, optimizer, state)
    finally:
        loader.close()
        pipe.close()


def fingerprint(mesh: DeviceMesh, step: Step) -> str:
    """Return the number of samples of the global batch, and a hash of which they are."""
    keys = [key for info in step.infos for key in info.keys]
    found = torch.tensor([len(keys), sum(zlib.crc32(key.encode()) for key in keys)])
    distributed.all_reduce(found, group=mesh["dp"].get_group())
    return f"{int(found[0])} samples ({int(found[1]):x})"


def read_arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedule", default="v-half-alg2")
    parser.add_argument("--pp", type=int, default=4, help="ranks of a pipeline")
    parser.add_argument("--data", metavar="PATTERN", help="shards; without, the demo's own")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--checkpoints", type=Path, metavar="FOLDER")
    parser.add_argument("--save-every", type=int, default=5, metavar="STEPS")
    return parser.parse_args(words)


def main() -> None:
    """Train on all processes that torchrun has started."""
    given = read_arguments()
    distributed.init_process_group("gloo")
    pipelines = distributed.get_world_size() // given.pp
    mesh = init_device_mesh("cpu", (pipelines, given.pp), mesh_dim_names=("dp", "pp"))
    for line in train(mesh, given):
        if distributed.get_rank() == 0:
            print(line, flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
