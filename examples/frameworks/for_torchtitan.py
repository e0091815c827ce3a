"""The loader that torchtitan is told to make, and what its trainer gets of it.

Run: python examples/frameworks/for_torchtitan.py
torchtitan makes it by --override.imports with the value
'counterpoise.loader.adapters.torchtitan.dataloader={"loader": "for_torchtitan:make_loader"}'
"""

from typing import Any

import numpy as np
from torch.utils.data import Dataset

import counterpoise as cp


class Texts(Dataset[dict[str, Any]]):
    """Tokenized texts of very different lengths."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a text, the same at every call."""
        ids = np.random.default_rng(index).integers(2, 64, 4 + 7 * index % 60)
        return {"input_ids": ids, "labels": ids}


def make_loader(ranks: tuple[int, int], **_: Any) -> Any:
    """Return the loader of a data-parallel rank; torchtitan also gives tokenizer and sizes."""
    return cp.DataLoader(
        Texts(),
        cost=lambda text: {"tokens": len(text["input_ids"])},
        # accumulate is torchtitan's gradient_accumulation_steps
        balance=cp.Balance(
            budgets={"tokens": 512},
            samples_per_step=16,
            accumulate=2,
            layout="packed",
            shapes=cp.Shapes(buckets={"tokens": [512]}),
            oversize="refuse",  # all batches have one length
        ),
        shuffle=True,
        ranks=ranks,
    )


def main() -> None:
    """Print the first microbatches."""
    from counterpoise.loader.adapters.torchtitan import PlannedDataLoader

    config = PlannedDataLoader.Config(loader=make_loader)
    dataloader = config.build(dp_rank=0, dp_world_size=1, tokenizer=None)
    for (inputs, labels), _ in zip(dataloader, range(3), strict=False):
        has_label = int((labels != -100).sum())
        print(f"input {tuple(inputs['input'].shape)}, {has_label} label tokens")
    dataloader.close()


if __name__ == "__main__":
    main()
