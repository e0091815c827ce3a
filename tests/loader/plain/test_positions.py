"""The position of a plain loader: exact however the loop is left, and whatever the data are."""

import copy
import itertools
import json
import logging
import pickle
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler

from counterpoise.loader import DataLoader
from tests.loader.plain import stateful_data as made
from tests.loader.plain.differential_data import Gated

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
WORKERS = [0, 2]
LENGTHS = {0: (19,), 2: (12, 7)}


def listed(batches):
    return [batch.tolist() for batch in batches]


def by_break(loader, count):
    for number, _ in enumerate(loader, 1):
        if number == count:
            break


def by_islice(loader, count):
    list(itertools.islice(loader, count))


def by_exception(loader, count):
    try:
        for number, _ in enumerate(loader, 1):
            1 / (count - number)
    except ZeroDivisionError:
        pass


def by_del(loader, count):
    iterator = iter(loader)
    for _ in range(count):
        next(iterator)
    del iterator


WAYS = [by_break, by_islice, by_exception, by_del]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("leave", WAYS)
def test_the_position_is_kept_however_the_loop_is_left(leave, workers):
    loader = DataLoader(range(20), 2, shuffle=True, num_workers=workers)
    leave(loader, 4)
    state = loader.state_dict()
    assert state["batches"] == 4
    rest = DataLoader(range(20), 2, shuffle=True)
    rest.load_state_dict(json.loads(json.dumps(state)))
    assert len(list(rest)) == 6


@pytest.mark.parametrize("make", [made.Bare, made.ByIterator, made.ByDataset])
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("batch_size", [None, 3])
def test_a_stream_goes_on_after_every_batch(make, workers, batch_size):
    def new():
        return DataLoader(make(LENGTHS[workers]), batch_size, num_workers=workers)

    torch.manual_seed(3)
    loader = new()
    states, whole = [], []
    for batch in loader:
        whole.append(batch.tolist())
        states.append(loader.state_dict())
    for done in (1, 5, len(whole)):
        resumed = new()
        resumed.load_state_dict(states[done - 1])
        assert listed(resumed) == whole[done:]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_stream_with_a_state_is_not_read_again(workers):
    data = made.ByIterator(LENGTHS[workers])
    loader = DataLoader(data, 3, num_workers=workers)
    by_islice(loader, 2)
    state = loader.state_dict()
    assert [reader["read"] for reader in state["readers"]] == ([6] if workers == 0 else [3, 3])
    assert all(reader["iterator"]["at"] == reader["read"] for reader in state["readers"])
    if workers == 0:
        data.asked.clear()
        loader.load_state_dict(state)
        list(loader)
        assert data.asked == list(range(6, 19))


def test_a_stream_without_a_state_is_read_again_with_the_same_draws_and_the_log_says_so(caplog):
    def new():
        return DataLoader(made.Bare((12, 7), noisy=True), 3, num_workers=2)

    loader = new()
    iterator = iter(loader)
    next(iterator)
    state, rest = loader.state_dict(), listed(iterator)
    resumed = new()
    resumed.load_state_dict(state)
    with caplog.at_level(logging.WARNING, "counterpoise"):
        assert listed(resumed) == rest
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "Bare has no state_dict, nor has its iterator"
    ]


def test_a_stream_with_other_workers_is_refused_inside_an_epoch_only():
    loader = DataLoader(made.Bare((12, 7)), 3, num_workers=2)
    by_break(loader, 2)
    state = loader.state_dict()
    with pytest.raises(ValueError, match="resume with num_workers=2, or save between epochs"):
        DataLoader(made.Bare((19,)), 3).load_state_dict(state)
    list(loader)
    between = DataLoader(made.Bare((19,)), 3)
    between.load_state_dict(loader.state_dict())
    assert len(list(between)) == 7


@pytest.mark.parametrize("workers", WORKERS)
def test_a_data_set_with_a_state_goes_on_in_the_workers_whose_turn_it_is(workers):
    def new():
        return DataLoader(made.Drawing(20), 2, num_workers=workers)

    loader = new()
    iterator = iter(loader)
    listed(itertools.islice(iterator, 3))
    state, rest = loader.state_dict(), listed(iterator)
    resumed = new()
    resumed.load_state_dict(state)
    assert listed(resumed) == rest


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", WORKERS)
def test_after_an_epoch_the_next_one_comes_with_a_shuffle_of_its_own(workers, persistent):
    def new():
        return DataLoader(
            range(40), 4, shuffle=True, num_workers=workers,
            persistent_workers=persistent and workers > 0,
        )  # fmt: skip

    torch.manual_seed(0)
    loader = new()
    first = listed(loader)
    state = loader.state_dict()
    assert state["batches"] == 0
    second = listed(loader)
    resumed = new()
    resumed.load_state_dict(state)
    assert listed(resumed) == second != first
    loader.close()
    resumed.close()


def test_asking_for_the_state_does_not_change_what_torch_would_draw():
    torch.manual_seed(0)
    theirs: Any = torch.utils.data.DataLoader
    expected = [listed(theirs(range(9), 2, shuffle=True)) for _ in range(3)]
    after = torch.get_rng_state()
    torch.manual_seed(0)
    loader, found = DataLoader(range(9), 2, shuffle=True), []
    for _ in range(3):
        loader.state_dict()
        iterator = iter(loader)
        loader.state_dict()
        found.append(listed(iterator))
    assert found == expected
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_stream_that_counts_its_epochs_goes_on_with_the_next(persistent):
    lengths, workers = ((12, 7), 2) if persistent else ((19,), 0)

    def new():
        return DataLoader(
            made.ByDataset(lengths), 3, num_workers=workers, persistent_workers=persistent
        )

    loader = new()
    list(loader)
    state = loader.state_dict()
    second = listed(loader)
    assert second[0][0][1] == 1
    resumed = new()
    resumed.load_state_dict(state)
    assert listed(resumed) == second
    loader.close()
    resumed.close()


@pytest.mark.parametrize("sampler", [made.Wandering, made.WanderingIterators])
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("batch_size", [None, 3])
def test_samplers_with_a_state_are_restored_by_it(sampler, workers, batch_size):
    def new(entropy):
        return DataLoader(
            range(20), batch_size, sampler=sampler(20, entropy), num_workers=workers,
            collate_fn=None if batch_size is None else torch.tensor,
        )  # fmt: skip

    loader = new(1)
    iterator = iter(loader)
    list(itertools.islice(iterator, 4))
    state, rest = loader.state_dict(), [torch.as_tensor(b).tolist() for b in iterator]
    resumed = new(2)
    resumed.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert [torch.as_tensor(b).tolist() for b in resumed] == rest


def test_a_batch_sampler_of_the_users_is_restored_too():
    class Batches(BatchSampler):
        pass

    class Stateful(made.Wandering):
        def __iter__(self):
            for index in super().__iter__():
                yield [index, index]

    for make in (
        lambda entropy: Batches(made.Wandering(12, 1 + 0 * entropy), 3, False),
        lambda entropy: Stateful(12, entropy),
    ):
        loader = DataLoader(range(12), batch_sampler=make(1))
        iterator = iter(loader)
        next(iterator), next(iterator)
        state, rest = loader.state_dict(), listed(iterator)
        resumed = DataLoader(range(12), batch_sampler=make(2))
        resumed.load_state_dict(state)
        assert listed(resumed) == rest


def test_out_of_order_what_was_not_handed_out_comes_first():
    data = Gated(12)
    loader = DataLoader(data, 2, num_workers=2, in_order=False)
    iterator = iter(loader)
    early = listed(itertools.islice(iterator, 3))
    assert [0, 1] not in early
    state = loader.state_dict()
    assert state["waiting"][0] == 0
    data.gate.set()
    for workers in (0, 1):
        rest = DataLoader(data, 2, num_workers=workers)
        rest.load_state_dict(state)
        found = listed(rest)
        assert found[0] == [0, 1]
        assert sorted(itertools.chain(*early, *found)) == list(range(12))


def test_a_batch_that_raised_comes_again():
    class Once(torch.utils.data.Dataset):
        broken = True

        def __len__(self):
            return 6

        def __getitem__(self, index):
            if index == 2 and self.broken:
                raise KeyError("not yet")
            return index

    data = Once()
    loader = DataLoader(data, 2)
    with pytest.raises(KeyError):
        list(loader)
    data.broken = False
    resumed = DataLoader(data, 2)
    resumed.load_state_dict(loader.state_dict())
    assert listed(resumed) == [[2, 3], [4, 5]]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
@pytest.mark.parametrize("workers", WORKERS)
def test_a_copy_has_settings_and_position(copied, workers):
    loader = DataLoader(
        list(range(12)), 2, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    assert len(list(copied(loader))) == 6
    iterator = iter(loader)
    next(iterator)
    twin = copied(loader)
    assert listed(twin) == listed(iterator)
    assert (twin.batch_size, twin.num_workers) == (2, workers)
    with pytest.raises(ValueError, match="batch_size attribute should not be set"):
        twin.batch_size = 3
    loader.close()
    twin.close()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_copy_of_a_balanced_loader_has_them_too(copied):
    loader = DataLoader(
        list(range(24)), 2, shuffle=True, balance="fixed", cost=cost_of, ranks=(0, 1),
        collate_fn=list,
    )  # fmt: skip
    assert len(list(copied(loader))) == 12
    iterator = iter(loader)
    next(iterator), next(iterator)
    assert list(copied(loader)) == list(iterator)
    loader.set_epoch(7)
    assert copied(loader).state_dict()["epoch"] == 7


def cost_of(sample):
    return {"tokens": 1 + sample % 3}


def test_the_data_of_another_length_are_refused():
    state = DataLoader(range(12), 2).state_dict()
    with pytest.raises(
        ValueError, match=r"samples was 12 and is 13.*resume with the same data set"
    ):
        DataLoader(range(13), 2).load_state_dict(state)


def test_the_state_of_one_of_two_loops_is_that_of_the_last_begun():
    loader = DataLoader(range(12), 2)
    first = iter(loader)
    next(first), next(first)
    second = iter(loader)
    next(second)
    next(first)
    assert loader.state_dict()["batches"] == 1
