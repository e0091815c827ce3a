"""The provider that Megatron-LM's --dataloader-type external asks for its data.

Run: python examples/frameworks/for_megatron.py
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


def make_loader(sizes: dict[str, int]) -> Any:
    """Return the loader; accumulate is Megatron's global_batch_size / (micro_batch_size * dp)."""
    return cp.DataLoader(
        Texts(),
        cost=lambda text: {"tokens": len(text["input_ids"])},
        balance=cp.Balance(
            budgets={"tokens": 400}, samples_per_step=16, accumulate=2, layout="packed"
        ),
        shuffle=True,
        ranks=sizes,
    )


def provide(_: Any, vp_stage: int | None = None, sizes: dict[str, int] | None = None) -> Any:
    """Return iterators over training data, and none of validation and test.

    With virtual stages Megatron-LM asks once for each, so all of them are made at the first.
    """
    if not MADE:
        virtual_stages = 1 if vp_stage is None else VIRTUAL_STAGES
        MADE.extend(cp.adapters.megatron_iterators(make_loader(sizes or {"dp": 1}), virtual_stages))
    return MADE[vp_stage or 0], None, None


MADE: list[Any] = []
VIRTUAL_STAGES = 2
provide.is_distributed = True  # type: ignore[attr-defined]  # each process makes its own


def main() -> None:
    """Take a step of two microbatches for each of two virtual stages."""
    stages = [provide(None, vp_stage=stage)[0] for stage in range(VIRTUAL_STAGES)]
    for microbatch in range(2):
        first, second = (next(stage) for stage in stages)
        print(f"microbatch {microbatch}: {first['tokens'].shape[1]} tokens", first is second)
    print(f"the checkpoint holds step {stages[0].save_state()['step']}")


if __name__ == "__main__":
    main()
