"""Train a small vision-language model on balanced, packed microbatches.

Run: python examples/train_vlm.py
"""

import torch

from counterpoise.loader import Balance, DataLoader, scale_loss
from counterpoise.tools.demo.data import ensure_demo_data
from counterpoise.tools.demo.model import DemoModelShape, VisionLanguageModel, sum_loss
from counterpoise.workers import TarDataset, VisionLanguage


def main() -> None:
    """Train for one epoch; every step is 32 samples in microbatches of at most so much work."""
    transform = VisionLanguage(tile_size=32, max_tiles=6, tokens_per_tile=4)
    loader = DataLoader(
        TarDataset(ensure_demo_data(samples=128, shards=2), transform=transform),
        num_workers=2,
        shuffle=True,
        balance=Balance(
            budgets={"tiles": 64, "tokens": 4096},
            samples_per_step=32,
            accumulate="auto",
            layout="packed",
        ),
    )
    model = VisionLanguageModel(DemoModelShape(vocabulary=262, image_token=259))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in loader.steps():
        mean = 0.0
        for batch, info in zip(step.microbatches, step.infos, strict=True):
            loss = scale_loss(sum_loss(model(batch), batch["labels"]), info)
            loss.backward()
            mean += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step.number}: {len(step.microbatches)} microbatches, loss {mean:.3f}")


if __name__ == "__main__":
    main()
