"""No position is believed in the order of another sampler, nor an iterator of another position."""

import json
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from counterpoise.loader import DataLoader
from counterpoise.loader.resume.ledger import with_digest
from tests.loader.resume.test_believed import NUMBERS, Named, after, balanced, plain


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (lambda: {"shuffle": True}, lambda: {"shuffle": False}),
        (lambda: {"shuffle": False}, lambda: {"shuffle": True}),
        (lambda: {"shuffle": True}, lambda: {"sampler": SequentialSampler(range(24))}),
        (lambda: distributed(seed=1), lambda: distributed(seed=2)),
        (lambda: distributed(epoch=1), lambda: distributed(epoch=0)),
        (lambda: distributed(), lambda: distributed(shuffle=False)),
        (lambda: seeded(1), lambda: {"shuffle": True}),
        (lambda: {"shuffle": True}, lambda: seeded(1)),
        (lambda: {"sampler": RandomSampler(range(24), replacement=True)},
         lambda: {"sampler": RandomSampler(range(24))}),
    ],
)  # fmt: skip
def test_a_position_in_the_order_of_another_sampler_is_refused(before, now):
    def resume(options):
        loader = plain(**options)
        loader.load_state_dict(state)
        return list(loader)

    state = after(plain(**before()), 2)
    assert len(resume(before())) == 4
    with pytest.raises(ValueError, match="order was"):
        resume(now())


def distributed(seed=0, epoch=0, shuffle=True):
    sampler = DistributedSampler(NUMBERS, 1, 0, shuffle, seed)
    sampler.set_epoch(epoch)
    return {"sampler": sampler}


def seeded(seed):
    return {"shuffle": True, "generator": torch.Generator().manual_seed(seed)}


def weighted(seed):
    generator = torch.Generator().manual_seed(seed)
    return {"sampler": WeightedRandomSampler([1.0] * 24, 24, generator=generator)}


def own_weighted():
    return {"sampler": WeightedRandomSampler([1.0] * 24, 24)}


def own_subset():
    return {"sampler": SubsetRandomSampler(range(24))}


def with_own_generator():
    generator = torch.Generator().manual_seed(3)
    return {"sampler": RandomSampler(range(24), generator=generator)}


def in_batches():
    return {"batch_sampler": Batches(RandomSampler(range(24)), 4, False)}


class Batches(BatchSampler):
    """A user's: torch's random sampler is inside."""


def shuffled():
    return {"shuffle": True}


DRAWN = [shuffled, lambda: seeded(3), lambda: weighted(3), own_weighted, own_subset,
         with_own_generator, in_batches]  # fmt: skip


def run(options, epochs, state=None, seed=3, workers=0, batches=0):
    """Return epochs, and some batches, of a script that seeds itself; and its state."""
    torch.manual_seed(seed)
    options = options()
    sizes: dict[str, Any] = {} if "batch_sampler" in options else {"batch_size": 4}
    loader = DataLoader(NUMBERS, num_workers=workers, **sizes, **options)
    if state is not None:
        loader.load_state_dict(state)
    found = [[batch.tolist() for batch in loader] for _ in range(epochs)]
    iterator = iter(loader) if batches else iter(())
    found += [[next(iterator).tolist() for _ in range(batches)]] if batches else []
    return found, json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize("options", DRAWN)
def test_a_script_that_seeds_itself_has_its_epochs_when_resumed_at_each_end(options):
    whole, _ = run(options, 5)
    found, state = [], None
    for _ in range(5):
        epochs, state = run(options, 1, state)
        found += epochs
    assert found == whole
    assert len({str(epoch) for epoch in whole}) == 5


@pytest.mark.parametrize("options", DRAWN)
@pytest.mark.parametrize("seed", [3, 8])
def test_also_when_resumed_inside_epochs_and_seeded_otherwise(options, seed):
    whole, _ = run(options, 4)
    (head,), state = run(options, 0, batches=2)
    (rest, second, head_of_third), state = run(options, 2, state, seed, batches=3)
    (rest_of_third, fourth), _ = run(options, 2, state, seed + 1)
    assert [head + rest, second, head_of_third + rest_of_third, fourth] == whole


def test_a_generator_that_was_restored_with_the_rest_of_the_script_is_followed():
    def draw_and_train(loader):
        found = []
        for batch in loader:
            found.append(batch.tolist())
            torch.rand(7)  # a model's dropout
        return found

    torch.manual_seed(3)
    loader = plain(NUMBERS, shuffle=True)
    draw_and_train(loader)
    state, generator = loader.state_dict(), torch.get_rng_state()
    whole = [draw_and_train(loader) for _ in range(3)]
    torch.manual_seed(3)
    resumed = plain(NUMBERS, shuffle=True)
    resumed.load_state_dict(state)
    torch.set_rng_state(generator)
    assert [draw_and_train(resumed) for _ in range(3)] == whole


@pytest.mark.parametrize("options", [shuffled, lambda: seeded(3), lambda: distributed()])
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_have_the_seeds_of_an_uninterrupted_run(options, persistent):
    def epochs(state, count):
        torch.manual_seed(3)
        loader = DataLoader(Seeds(), 4, num_workers=1, persistent_workers=persistent, **options())
        if state is not None:
            loader.load_state_dict(state)
        found = [str([batch.tolist() for batch in loader]) for _ in range(count)]
        state = loader.state_dict()
        loader.close()
        return found, state

    whole, _ = epochs(None, 3)
    found, state = [], None
    for _ in range(3):
        epoch, state = epochs(state, 1)
        found += epoch
    assert found == whole


class Seeds(Dataset):
    """Says what its worker was seeded with."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.tensor([index, get_worker_info().seed])


def test_torchs_own_generator_is_left_to_the_script():
    _, state = run(shuffled, 1)
    torch.manual_seed(50)
    loader = plain(NUMBERS, shuffle=True)
    loader.load_state_dict(state)
    before = torch.get_rng_state()
    list(loader), list(loader)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("text", ["", "x", "0" * 4000, "é"])
def test_what_is_no_state_of_a_generator_is_refused(text):
    state = after(plain(shuffle=True), 2)
    with pytest.raises(ValueError, match=r"ledger\.generators has no state"):
        plain(shuffle=True).load_state_dict(with_digest({**state, "generators": [text]}))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_has_become_shorter_is_an_error(workers):
    class Stream(torch.utils.data.IterableDataset):
        def __init__(self, count):
            self.count = count

        def __iter__(self):
            yield from range(self.count)

    state = after(plain(Stream(24), num_workers=workers), 3)
    loader = plain(Stream(8), num_workers=workers)
    loader.load_state_dict(state)
    with pytest.raises(ValueError, match="has only 8"):
        list(loader)


# --- iterators that were opened before


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("make", [balanced, plain])
def test_an_iterator_that_was_opened_before_says_that_it_is_stale(make, workers):
    loader = make(Named(), num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    loader.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"over: load_state_dict\(\) was called"):
        next(iterator)
    assert loader.state_dict() == state
    loader.close()


class WithTorchsState(Dataset):
    """Draws from torch's own generator, whose state is its own."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index, int(torch.randint(1000, ()))

    def state_dict(self):
        return {"generator": torch.get_rng_state()}

    def load_state_dict(self, state):
        torch.set_rng_state(state["generator"])


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("batches", [0, 3, 8])
def test_a_data_set_whose_state_is_torchs_generator_goes_on_as_it_was(epoch, batches):
    def loader() -> Any:
        return DataLoader(WithTorchsState(), shuffle=True, collate_fn=list)

    torch.manual_seed(5)
    whole = loader()
    wanted: list[Any] = [batch for _ in range(epoch) for batch in whole]
    iterator = iter(whole)
    wanted += [next(iterator) for _ in range(batches)]
    if batches == 8:
        assert list(iterator) == []
    state = whole.state_dict()
    rest = [*iterator, *whole, *whole]
    torch.manual_seed(77)
    resumed = loader()
    resumed.load_state_dict(state)
    found = [batch for _ in range(3) for batch in resumed]
    assert found[: len(rest)] == rest
