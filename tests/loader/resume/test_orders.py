"""No position is believed in the order of another sampler, nor an iterator of another position."""

import pytest
import torch
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

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
        (lambda: seeded(1), lambda: seeded(2)),
        (lambda: weighted(1), lambda: weighted(2)),
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


def test_a_sampler_that_draws_from_torchs_own_generator_must_find_it_as_it_was():
    def new():
        torch.manual_seed(7)
        return plain(sampler=WeightedRandomSampler([1.0] * 24, 24))

    loader = new()
    state, rest = after(loader, 2), [batch.tolist() for batch in list(new())[2:]]
    resumed = new()
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == rest
    resumed.load_state_dict(state)
    with pytest.raises(ValueError, match="generator at"):
        next(iter(resumed))


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
