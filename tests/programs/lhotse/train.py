"""Trains a convolution on speech with DDP: python train.py KIND CUTS, a rank a process.

A rank that makes fewer steps than others would leave them waiting for its gradients.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import counterpoise as cp
from tests.programs.lhotse import speech
from tests.programs.recording import note


def main() -> None:
    """Train an epoch, and note each batch."""
    kind, path = sys.argv[1], Path(sys.argv[2])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Conv1d(1, 1, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    loaders = {
        "lhotse": lambda: speech.load_by_sampler(path, rank, ranks),
        "eager": lambda: speech.load_eager(path, ranks),
        "lazy": lambda: speech.load_lazy(path, ranks),
        "stream": lambda: speech.load_stream(path),
    }
    loader = loaders[kind]()
    for step, batches in enumerate(take_steps(loader)):
        for batch, info in batches:
            note_sound(step, batch, info)
            errors = model(batch["inputs"][:, None]).square().mean(dim=(1, 2))
            loss = errors.mean() if info is None else cp.scale_loss(errors.sum(), info, "sample")
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


def take_steps(loader: Any) -> Any:
    """Yield each step's batches with their StepInfo, which lhotse's have not."""
    if hasattr(loader, "steps"):
        for step in loader.steps():
            yield list(zip(step.microbatches, step.infos, strict=True))
    else:
        for batch in loader:
            yield [(batch, None)]


def note_sound(step: int, batch: dict[str, Any], info: cp.StepInfo | None) -> None:
    """Note what a batch's tensor holds; a batch of weight 0 holds a cut of another rank's."""
    names = speech.name_cuts(batch) if info is None or info.samples else []
    lengths = batch["supervisions"]["num_samples"].tolist()[: len(names)]
    note(
        "batch", step=step, epoch=0, samples=names, lengths=lengths,
        slots=batch["inputs"].numel(),
    )  # fmt: skip


if __name__ == "__main__":
    main()
