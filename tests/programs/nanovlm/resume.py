"""Loads 3 steps of what balanced.py makes, and from a state after them the others of 20 steps."""

import json
from importlib import import_module
from itertools import count, islice
from typing import Any

import torch.distributed as dist

from tests.programs.nanovlm.observe import note

BEGUN, MICROBATCHES = 3, 4
train: Any = import_module("train")


def make_loader() -> tuple[Any, Any]:
    """Return the loader of balanced.py, and the iterator over it that was opened."""
    train.main = lambda: None
    settings = train.config.TrainConfig(train_dataset_path="data")
    made = import_module("balanced").make_balanced(settings, train.config.VLMConfig())
    return made[0], made[2]


if __name__ == "__main__":
    train.init_dist()
    train.PG_CPU = dist.new_group(backend="gloo")
    loader, batches = make_loader()
    for _ in islice(batches, BEGUN * MICROBATCHES):
        pass
    state = json.loads(json.dumps(loader.state_dict()))
    loader, _ = make_loader()
    loader.load_state_dict(state)
    numbers = count(BEGUN * MICROBATCHES)
    for epoch in range(2):
        for batch, number in zip(loader, numbers, strict=False):
            note(batch, "batch", step=number // MICROBATCHES, epoch=epoch)
    train.destroy_dist()
