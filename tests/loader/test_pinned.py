"""`pin_memory=True` beside an accelerator, which is pretended: torch's thread pins all batches."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import counterpoise as cp

COUNT = 96


class Numbers(Dataset[Any]):
    """Tensors that lie in slots, and their numbers."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((40_000,), index, dtype=torch.uint8), index


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pretend that there is an accelerator; return how many numbers each pinned tensor has."""
    found: list[int] = []

    def pin(tensor: torch.Tensor, *_: object) -> torch.Tensor:
        found.append(tensor.numel())
        return tensor.clone()

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda _: None)
    # torch 2.6 asks for CUDA only.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    return found


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("balanced", [False, True])
def test_every_batch_is_pinned_by_torchs_thread(
    pinned: list[int], balanced: bool, persistent: bool
) -> None:
    given: dict[str, Any] = {"num_workers": 2, "persistent_workers": persistent, "shuffle": True}
    if balanced:
        costs = {"tokens": np.arange(COUNT) % 7 + 1}
        given |= {"balance": cp.Balance(accumulate=4, samples_per_step=16), "cost": costs}
    else:
        given |= {"batch_size": 4}
    loader = cp.DataLoader(Numbers(), pin_memory=True, **given)
    for epoch in (1, 2):
        batches = [*loader]
        numbers = [int(each) for _, indexes in batches for each in indexes]
        assert sorted(numbers) == [*range(COUNT)]
        for tensors, indexes in batches:
            assert (tensors == indexes[:, None]).all()
        # Persistent workers make the next epoch's first batches meanwhile, which are pinned, too.
        of_epochs = pinned[: epoch * 2 * len(batches)]
        assert sum(of_epochs) == epoch * COUNT * (40_000 + 1)
    first = next(iter(loader))  # a loop that is left in the middle
    assert len(first) == 2
    del loader
