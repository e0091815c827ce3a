"""Uses of the loader as an object: copies, pickles, subclasses, attributes."""

import copy
import pickle
from typing import Any

from tests.loader.uses.kinds import Make, batches, seen, use
from tests.loader.uses.samples import Numbers


@use("`copy.deepcopy(loader)`, before and between loops")
def deep_copied(make: Make) -> Any:
    loader = make(Numbers(), batch_size=4)
    copied = copy.deepcopy(loader)
    return batches(copied), batches(loader), batches(copy.deepcopy(loader))


@use("`pickle` of a loader before the first loop")
def pickled(make: Make) -> Any:
    return batches(pickle.loads(pickle.dumps(make(Numbers(), batch_size=4))))


@use("`pickle` of a loader after a loop, with workers")
def pickled_after(make: Make) -> Any:
    loader = make(Numbers(), batch_size=4, num_workers=1)
    for _ in loader:
        pass
    return batches(pickle.loads(pickle.dumps(loader)))


@use("`pickle` of an iterator")
def pickled_iterator(make: Make) -> Any:
    return bool(pickle.dumps(iter(make(Numbers()))))


@use("a subclass that changes what `__iter__` yields")
def subclassed(make: Make) -> Any:
    class Doubled(make):  # type: ignore[misc, valid-type]
        def __iter__(self) -> Any:
            return (2 * batch for batch in super().__iter__())

    return batches(Doubled(Numbers(), batch_size=5))


@use("`DataLoader[int]`, as a type and as a base class")
def subscripted(make: Make) -> Any:
    loader: Any = make

    class Integers(loader[int]):
        pass

    return batches(Integers(Numbers(3))), batches(loader[int](Numbers(3)))


@use("reading `dataset`, `batch_size`, `drop_last`, `num_workers`, ...")
def attributes(make: Make) -> Any:
    loader = make(Numbers(), batch_size=4, drop_last=True)
    names = ["batch_size", "drop_last", "num_workers", "pin_memory", "timeout", "in_order"]
    names += ["prefetch_factor", "persistent_workers", "multiprocessing_context"]
    return [getattr(loader, name) for name in names], len(loader.dataset), len(loader.sampler)


@use("setting `batch_size` after construction")
def assigned(make: Make) -> Any:
    loader = make(Numbers(), batch_size=4)
    loader.batch_size = 2
    return batches(loader)


@use("a dataset that changes between two loops, with a worker")
def changed_between(make: Make) -> Any:
    dataset = Numbers(4)
    loader = make(dataset, batch_size=2, num_workers=1)
    before = batches(loader)
    dataset.offset = 100
    return before, batches(loader)


@use("a dataset that changes in the middle of a loop, without workers")
def changed_within(make: Make) -> Any:
    dataset = Numbers(4)
    iterator = iter(make(dataset, batch_size=2))
    before = seen(next(iterator))
    dataset.offset = 100
    return before, seen(next(iterator))
