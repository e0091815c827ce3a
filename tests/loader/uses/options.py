"""Uses of the constructor's arguments, right and wrong."""

import itertools
from typing import Any

import torch
import torch.utils.data as torch_data

from tests.loader.uses.kinds import Make, batches, use
from tests.loader.uses.samples import Numbers, Odd, Stream


@use("`drop_last=True`")
def dropped(make: Make) -> Any:
    return batches(make(Numbers(), batch_size=4, drop_last=True))


@use("`batch_size=None`")
def unbatched(make: Make) -> Any:
    return batches(make(Numbers(3), batch_size=None))


@use("`batch_size=0`")
def no_batch(make: Make) -> Any:
    return batches(make(Numbers(), batch_size=0))


@use("`batch_sampler=`")
def batch_sampler(make: Make) -> Any:
    return batches(make(Numbers(), batch_sampler=[[1, 2], [3], [9, 0, 4]]))


@use("`sampler=`, of an odd length")
def odd_sampler(make: Make) -> Any:
    loader = make(Numbers(), batch_size=2, sampler=Odd())
    return len(loader), batches(loader)


@use("`sampler=` and `shuffle=True`")
def sampler_and_shuffle(make: Make) -> Any:
    return batches(make(Numbers(), sampler=Odd(), shuffle=True))


@use("`shuffle=True`: every sample once, in another order each epoch")
def shuffled(make: Make) -> Any:
    torch.manual_seed(3)
    loader = make(Numbers(40), batch_size=8, shuffle=True)
    epochs = [[number for batch in loader for number in batch.tolist()] for _ in range(2)]
    return [sorted(epoch) for epoch in epochs], epochs[0] != epochs[1]


@use("`shuffle=True`, a loop left by `break`, and a new one: the next epoch, whole")
def shuffled_and_left(make: Make) -> Any:
    torch.manual_seed(3)
    loader = make(Numbers(40), batch_size=8, shuffle=True)
    left = next(iter(loader)).tolist()
    epoch = [batch.tolist() for batch in loader]
    return left != epoch[0], sorted(itertools.chain(*epoch))


@use("`generator=` that fixes the shuffle")
def seeded(make: Make) -> Any:
    generator = torch.Generator().manual_seed(5)
    return batches(make(Numbers(), shuffle=True, generator=generator))


@use("`DistributedSampler` without `set_epoch`: each epoch is the first again")
def not_told(make: Make) -> Any:
    dataset = Numbers()
    sampler: Any = torch_data.DistributedSampler(dataset, num_replicas=1, rank=0)
    loader = make(dataset, sampler=sampler)
    return batches(loader) == batches(loader)


@use("`DistributedSampler` with `set_epoch`")
def distributed(make: Make) -> Any:
    dataset = Numbers()
    sampler: Any = torch_data.DistributedSampler(dataset, num_replicas=2, rank=1)
    loader = make(dataset, batch_size=2, sampler=sampler)
    loader.sampler.set_epoch(4)
    return batches(loader)


@use("an empty dataset")
def empty(make: Make) -> Any:
    return batches(make(Numbers(0)))


@use("an `IterableDataset`, with workers")
def stream(make: Make) -> Any:
    return batches(make(Stream(), batch_size=2, num_workers=2))


@use("an `IterableDataset` with `shuffle=True`")
def shuffled_stream(make: Make) -> Any:
    return batches(make(Stream(), shuffle=True))


@use("`num_workers=-1`")
def negative_workers(make: Make) -> Any:
    return batches(make(Numbers(), num_workers=-1))


@use("`prefetch_factor=` without workers")
def prefetch_without_workers(make: Make) -> Any:
    return batches(make(Numbers(), prefetch_factor=2))


@use("`persistent_workers=True` without workers")
def persistent_without_workers(make: Make) -> Any:
    return batches(make(Numbers(), persistent_workers=True))


@use("`pin_memory=True` where there is no accelerator")
def pinned(make: Make) -> Any:
    return batches(make(Numbers(4), batch_size=2, pin_memory=True))
