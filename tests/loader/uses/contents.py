"""Uses that are about what samples and batches may be, with a worker that sends them."""

from typing import Any

import numpy as np
import torch

from tests.loader.uses.kinds import Make, batches, seen, use
from tests.loader.uses.samples import Made, Numbers, Pair, Parcel


def _nested(samples: list[Any]) -> Any:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def _sparse(samples: list[Any]) -> Any:
    return torch.eye(3).to_sparse()


def _refuse_threes(samples: list[Any]) -> Any:
    if 3 in samples:
        raise TypeError("threes are not for this collate function")
    return torch.stack(samples)


def _collated(make: Make, collate: Any) -> Any:
    return batches(make(Numbers(4), batch_size=2, num_workers=1, collate_fn=collate))


@use("nested tensors from a worker")
def nested(make: Make) -> Any:
    return _collated(make, _nested)


@use("sparse tensors from a worker")
def sparse(make: Make) -> Any:
    return _collated(make, _sparse)


@use("a class of one's own as batch, from a worker")
def custom(make: Make) -> Any:
    return _collated(make, Parcel)


@use("namedtuples, dicts, strings and NumPy arrays in samples")
def containers(make: Make) -> Any:
    def sample(index: int) -> Any:
        array = np.full((2,), index, np.float32)
        return Pair({"a": torch.tensor([index]), "name": str(index)}, (index / 2, array))

    return batches(make(Made(sample), batch_size=2, num_workers=1))


@use("`None` in a sample, with the default collate function")
def none_in_a_sample(make: Make) -> Any:
    return batches(make(Made(lambda index: (index, None)), batch_size=2))


@use("samples of different sizes, with the default collate function")
def ragged(make: Make) -> Any:
    return batches(make(Made(torch.ones), batch_size=2))


@use("an exception in the dataset")
def dataset_raises_at_once(make: Make) -> Any:
    return batches(make(Numbers(6, broken=3), batch_size=2))


@use("an exception in the dataset, then on with the same iterator")
def dataset_raises(make: Make) -> Any:
    return _after_an_error(make(Numbers(6, broken=3), batch_size=2))


@use("an exception in the dataset of a worker, then on with the same iterator")
def dataset_raises_in_worker(make: Make) -> Any:
    return _after_an_error(make(Numbers(6, broken=3), batch_size=2, num_workers=1))


@use("an exception in `collate_fn`, then on with the same iterator")
def collate_raises(make: Make) -> Any:
    return _after_an_error(make(Numbers(6), batch_size=2, collate_fn=_refuse_threes))


def _after_an_error(loader: Any) -> Any:
    """Return the batches of one iterator before and after the first error, and its last line."""
    iterator, found = iter(loader), []
    try:
        found.extend(map(seen, iterator))
    except Exception as error:
        found.append(str(error).splitlines()[-1])
    return found + batches(iterator)
