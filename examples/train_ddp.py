"""Train on two ranks: every rank gets its share of each step, and no step is unbalanced.

Run: torchrun --standalone --nproc-per-node 2 examples/train_ddp.py
"""

from contextlib import nullcontext

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from counterpoise.loader import Balance, DataLoader, scale_loss
from counterpoise.tools.demo.data import ensure_demo_data
from counterpoise.tools.demo.model import DemoModelShape, VisionLanguageModel, sum_loss
from counterpoise.workers import TarDataset, VisionLanguage


def main() -> None:
    """Train for one epoch; the loader finds rank and ranks in torch.distributed."""
    distributed.init_process_group("gloo")
    transform = VisionLanguage(tile_size=32, max_tiles=6, tokens_per_tile=4)
    loader = DataLoader(
        TarDataset(ensure_demo_data(samples=128, shards=2), transform=transform),
        num_workers=1,
        shuffle=True,
        balance=Balance(
            budgets={"tiles": 64, "tokens": 4096},
            samples_per_step=32,
            accumulate="auto",
            layout="packed",
        ),
    )
    torch.manual_seed(0)
    model = DistributedDataParallel(VisionLanguageModel(DemoModelShape(262, image_token=259)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in loader.steps():
        mean = torch.zeros(())
        for batch, info in zip(step.microbatches, step.infos, strict=True):
            with nullcontext() if info.last else model.no_sync():
                loss = scale_loss(sum_loss(model(batch), batch["labels"]), info)
                loss.backward()
            mean += loss.detach() / info.ranks
        optimizer.step()
        optimizer.zero_grad()
        distributed.all_reduce(mean)
        if distributed.get_rank() == 0:
            print(f"step {step.number}: loss {mean:.3f}")
    del model  # what outlives its group may hang (torch 2.13, gloo): its threads need Python's lock
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
