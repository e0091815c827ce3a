"""Whether a data set reads from a store is asked without opening anything of it."""

from typing import Any

import torch
from torch.utils.data import Dataset

import counterpoise as cp


class OpensWhenAsked(Dataset[torch.Tensor]):
    """Opens its file with the first look at `dataset`, as those of HDF5 do in each worker."""

    @property
    def dataset(self) -> Any:
        raise AssertionError("the file was opened")

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


def test_a_plain_loop_does_not_open_what_its_workers_open() -> None:
    loader = cp.DataLoader(OpensWhenAsked(), batch_size=4, num_workers=1)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
