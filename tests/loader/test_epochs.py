"""What an epoch is: each iter() that does not resume begins the next, set_epoch() holds it.

The rows are those of the table in docs/guides/resume.md.
"""

import io
import itertools
import os
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Sampler

import counterpoise as cp

SAMPLES, TAKEN = 48, 3


def loader(**named: Any) -> Any:
    return cp.DataLoader(list(range(SAMPLES)), batch_size=4, collate_fn=list, **named)


def distributed(kind: Any, **named: Any) -> Any:
    sampler: Any = DistributedSampler(range(SAMPLES), num_replicas=1, rank=0)  # type: ignore[arg-type]
    return kind(list(range(SAMPLES)), batch_size=4, collate_fn=list, sampler=sampler, **named)


def batch_sampler() -> Any:
    balance = cp.Balance(budgets={"tokens": 4}, samples_per_step=4, accumulate=1)
    costs = {"tokens": [1] * SAMPLES}
    sampler: Any = cp.BalancedBatchSampler(costs, balance, ranks=(0, 1))
    numbers: Any = list(range(SAMPLES))
    return DataLoader(numbers, batch_sampler=sampler, collate_fn=list)


def mixture(**named: Any) -> cp.Mixture:
    """Return a mixture of two sources whose epochs have all samples."""
    parts = {"a": (list(range(32)), 2), "b": (list(range(32, SAMPLES)), 1)}
    return cp.Mixture(parts, epoch=SAMPLES, **named)


def mixed(kind: Any = cp.DataLoader, **named: Any) -> Any:
    return kind(mixture(), batch_size=4, collate_fn=list, **named)


BALANCED: dict[str, Any] = {"balance": "fixed", "cost": {"tokens": [1] * SAMPLES}}
ALIKE: dict[str, Callable[[], Any]] = {
    "balanced": lambda: loader(shuffle=True, **BALANCED),
    "balanced, with workers": lambda: loader(shuffle=True, num_workers=1, **BALANCED),
    "auto": lambda: loader(shuffle=True, balance="auto"),
    "a mixture": lambda: mixed(shuffle=True, balance="fixed"),
    "a batch sampler under torch's loader": batch_sampler,
}


def taken(given: Any, count: int | None = TAKEN) -> list[Any]:
    """Return some batches of an iteration, which is left then; None: all of them."""
    return list(itertools.islice(given, count))


def set_epoch(given: Any, epoch: int) -> None:
    (given if hasattr(given, "set_epoch") else given.batch_sampler).set_epoch(epoch)


@pytest.mark.parametrize("kind", ALIKE)
def test_set_epoch_holds_the_epoch_until_another_is_set(kind: str) -> None:
    given, counted = ALIKE[kind](), ALIKE[kind]()
    epochs = [taken(counted, None) for _ in range(4)]
    for epoch in (2, 0, 3):
        set_epoch(given, epoch)
        assert [taken(given), taken(given, None)] == [epochs[epoch][:TAKEN], epochs[epoch]]


@pytest.mark.parametrize("more", [{}, BALANCED])
def test_a_distributed_sampler_repeats_as_under_torch(more: dict[str, Any]) -> None:
    ours, theirs = distributed(cp.DataLoader, **more), distributed(DataLoader)
    for epoch in (None, None, 2, None, 1):
        if epoch is not None:
            ours.sampler.set_epoch(epoch) if not more else ours.set_epoch(epoch)
            theirs.sampler.set_epoch(epoch)
        found = taken(ours, None)
        assert sorted(itertools.chain(*found)) == sorted(itertools.chain(*taken(theirs, None)))
        assert taken(ours, None) == found


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [cp.DataLoader, DataLoader])
def test_a_plain_loop_over_a_mixture_repeats_until_its_epoch_is_set(
    kind: Any, workers: int
) -> None:
    given = mixed(kind, num_workers=workers, persistent_workers=workers > 0)
    for epoch in (None, 2, None, 1):
        if epoch is not None:
            given.dataset.set_epoch(epoch)
        begun, rows = taken(given), given.dataset.rows
        wanted = [rows[row] for row in rows.recipe.order(0, given.dataset.epoch, True).tolist()]
        assert [*itertools.chain(*begun)] == wanted[: 4 * TAKEN]
        assert [*itertools.chain(*taken(given, None))] == wanted
    if kind is cp.DataLoader:
        given.set_epoch(3)
        assert given.dataset.epoch == 3


@pytest.mark.parametrize("workers", [0, 1])
def test_a_plain_loop_over_a_mixture_resumes_in_its_epoch_only(workers: int) -> None:
    first = mixed(num_workers=workers)
    first.set_epoch(2)
    whole, begun = taken(first, None), iter(first)
    head = [next(begun), next(begun)]
    state = first.state_dict()
    second = mixed(num_workers=workers)
    second.load_state_dict(state)
    with pytest.raises(ValueError, match=r"was SequentialSampler\(data.epoch=2\)"):
        taken(second)
    second = mixed(num_workers=workers)
    second.set_epoch(2)
    second.load_state_dict(state)
    assert head + taken(second, None) == whole
    second.set_epoch(3)
    first.set_epoch(3)
    assert taken(second, None) == taken(first, None)


class Stream(IterableDataset[int]):
    """Numbers that begin with the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(range(100 * self.epoch, 100 * self.epoch + 8))


PACKED = {
    "balance": cp.Balance(budgets={"tokens": 4}, accumulate=1),
    "cost": lambda _: {"tokens": 1},
}


@pytest.mark.parametrize("count", [None, 1])
@pytest.mark.parametrize("stays", [None, False, True])
@pytest.mark.parametrize("how", [{"batch_size": 4}, PACKED], ids=["plain", "packed"])
def test_the_epoch_of_a_stream_reaches_its_workers(
    how: dict[str, Any], stays: bool | None, count: int | None
) -> None:
    more: dict[str, Any] = {} if stays is None else {"num_workers": 1, "persistent_workers": stays}
    given: Any = cp.DataLoader(Stream(), collate_fn=list, **how, **more)
    begins = []
    for epoch in (0, 2, 1):
        given.set_epoch(epoch)
        begins.append(taken(given, count)[0][0])
    assert begins == [0, 200, 100]


class Counting(Sampler[int]):
    """Counts how often it is asked for its state."""

    asked = 0

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        return iter(range(SAMPLES))

    def state_dict(self) -> dict[str, int]:
        Counting.asked += 1
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None: ...


@pytest.mark.parametrize("workers", [0, 1])
def test_a_samplers_state_is_taken_only_when_the_loaders_is(workers: int) -> None:
    Counting.asked = 0
    given = loader(sampler=Counting(), num_workers=workers)
    assert [*itertools.chain(*taken(given, None))] == list(range(SAMPLES))
    assert Counting.asked == 0
    begun = iter(given)
    next(begun)
    given.state_dict()
    assert Counting.asked == 1


class Generators(pickle.Pickler):
    """Counts torch's generators, which torch sends to other processes through shared memory."""

    count = 0

    def reducer_override(self, value: Any) -> Any:
        self.count += isinstance(value, torch.Generator)
        return NotImplemented


@pytest.mark.parametrize("more", [{}, {"num_workers": 1}, BALANCED])
def test_a_loader_goes_to_another_process_without_a_generator(more: dict[str, Any]) -> None:
    given, file = loader(shuffle=not more.get("num_workers"), **more), io.BytesIO()
    pickler = Generators(file)
    pickler.dump(given)
    assert pickler.count == 0
    assert len(taken(pickle.loads(file.getvalue()), None)) == SAMPLES // 4


def test_a_forked_child_may_make_iterators_where_inherited_ones_were() -> None:
    from counterpoise.loader.plain.torch_names import child_reports

    begun = iter(loader(num_workers=1))
    next(begun)
    if (child := os.fork()) == 0:
        try:
            # what another iterator at the same address would do
            child_reports._set_worker_pids(id(begun), (1,))
            child_reports._remove_worker_pids(id(begun))
        except ValueError:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
