"""torch's samplers, generator and worker_init_fn in a balanced loader."""

from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from counterpoise import Ranks
from counterpoise.loader import Balance, DataLoader

DATA: Any = list(range(24))


def make(**more: Any) -> DataLoader:
    given: dict[str, Any] = {"batch_size": 3, "balance": Balance("fixed", partition="given")}
    return DataLoader(DATA, collate_fn=list, **{**given, **more})


def taken(loader: Any) -> list[int]:
    return [number for batch in loader for number in batch]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_distributed_sampler_gives_rank_seed_and_epoch() -> None:
    for epoch in (0, 2):
        found, wanted = [], []
        for rank in (0, 1):
            sampler: Any = DistributedSampler(DATA, 2, rank, seed=7)
            loader = make(sampler=sampler) if rank == 0 else None
            sampler.set_epoch(epoch)
            wanted += list(sampler)
            if loader is not None:
                assert loader._arguments is not None
                assert loader._arguments.ranks == Ranks((0, 2))
        both = make(
            shuffle=True,
            balance=Balance("fixed", partition="given", seed=7),
            ranks=Ranks(virtual=2),
        )
        both.set_epoch(epoch)
        found = taken(both)
        assert sorted(found) == sorted(wanted)


def test_its_epoch_is_read_at_each_iteration() -> None:
    sampler: Any = DistributedSampler(DATA, 1, 0, seed=7)
    loader = make(sampler=sampler)
    epochs = []
    for epoch in (0, 1, 2, 2):
        sampler.set_epoch(epoch)
        epochs.append(taken(loader))
        assert epochs[-1] == list(sampler)
    assert epochs[2] == epochs[3] != epochs[1]
    # without set_epoch the order stays, as with torch's loader
    assert taken(loader) == epochs[3]


def test_a_ledger_sets_its_epoch() -> None:
    sampler: Any = DistributedSampler(DATA, 1, 0, seed=7)
    loader = make(sampler=sampler)
    sampler.set_epoch(3)
    batches = iter(loader)
    first = next(batches)
    other: Any = DistributedSampler(DATA, 1, 0, seed=7)
    again = make(sampler=other)
    again.load_state_dict(loader.state_dict())
    assert other.epoch == 3
    assert first + taken(again) == list(sampler)
    again.set_epoch(5)
    assert other.epoch == 5
    assert taken(again) == list(other)


def test_torchs_other_samplers_say_shuffle_and_seed() -> None:
    assert taken(make(sampler=SequentialSampler(DATA))) == DATA
    by_seed = taken(make(shuffle=True, balance=Balance("fixed", partition="given", seed=5)))
    assert taken(make(sampler=RandomSampler(DATA, generator=seeded(5)))) == by_seed
    assert taken(make(shuffle=True, generator=seeded(5))) == by_seed
    assert taken(make(sampler=RandomSampler(DATA), generator=seeded(5))) == by_seed
    assert taken(make(sampler=RandomSampler(DATA))) == taken(make(shuffle=True))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"sampler": RandomSampler(DATA, replacement=True)}, "write shuffle=True"),
        ({"sampler": RandomSampler(DATA, num_samples=6)}, "leave replacement and num_samples"),
        ({"sampler": SubsetRandomSampler([1, 2])}, r"data.Subset\(data, indices\), shuffle=True"),
        (
            {"sampler": WeightedRandomSampler([1.0] * 24, 24)},
            "weights of sources are those of cp.Mixture",
        ),
        ({"sampler": SequentialSampler([1])}, "is of 1 samples, and the data set has 24"),
        ({"sampler": SequentialSampler(DATA), "shuffle": True}, "not both"),
        (
            {"batch_sampler": BatchSampler(SequentialSampler(DATA), 2, False), "batch_size": 1},
            r"leave batch_sampler, and write DataLoader\(data, batch_size=8, shuffle=True, bal",
        ),
        ({"sampler": DistributedSampler(DATA, 2, 0), "ranks": Ranks(virtual=2)}, "and ranks too"),
        (
            {"sampler": DistributedSampler(DATA, 2, 0, seed=3), "generator": seeded(4)},
            "seed is 3, and generator's 4: leave generator",
        ),
    ],
)
def test_what_a_plan_cannot_stand_for_is_refused_with_the_line(more: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make(**more)
