"""What next() does as torch's does beside returning a batch: labels in profiles, and warnings."""

from collections.abc import Iterator

import pytest
import torch
import torch.utils.data as torch_data

from counterpoise.loader import DataLoader


def names_of(loader: "torch_data.DataLoader[object]") -> set[str]:
    """Return what a profile of one epoch names, from its third batch on."""
    batches = iter(loader)
    next(batches), next(batches)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        list(batches)
    return {each.key for each in profile.key_averages() if "DataLoader" in each.key}


def test_next_is_in_a_profile() -> None:
    data = torch_data.TensorDataset(torch.arange(16))
    ours, torchs = (kind(data, 2, num_workers=1) for kind in (DataLoader, torch_data.DataLoader))
    assert len(names_of(torchs)) == 1
    assert {name.split("#")[0] for name in names_of(ours)} == {"enumerate(DataLoader)"}


class Longer(torch_data.IterableDataset[int]):
    """Says that it has two samples, and has three."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_a_stream_with_more_samples_than_it_said_is_warned_of() -> None:
    loader = DataLoader(Longer(), 1, num_workers=1)
    assert len(loader) == 2
    with pytest.warns(UserWarning, match="was reported to be 2"):
        assert len(list(loader)) == 3
