"""Resume a loader without balance at any position, with other numbers of workers."""

import itertools

import pytest
import torch
from torch.utils.data import BatchSampler, SequentialSampler

from counterpoise.loader import DataLoader
from tests.loader.resume.resume_data import through_json


def plain(count=23, **changes):
    return DataLoader(list(range(count)), **{"batch_size": 4, **changes})


def values(batches):
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_plain_loader_goes_on_after_every_batch(shuffle, workers):
    torch.manual_seed(1)
    loader = plain(shuffle=shuffle, num_workers=workers)
    ledgers, whole = [through_json(loader.state_dict())], []
    for batch in loader:
        whole += values([batch])
        ledgers.append(through_json(loader.state_dict()))
    for done, ledger in enumerate(ledgers):
        torch.manual_seed(100 + done)
        resumed = plain(shuffle=shuffle, num_workers=workers if done == 2 else 0)
        resumed.load_state_dict(ledger)
        rest = values(resumed)
        assert rest == whole[done:]
        assert len(values(resumed)) == 6


def test_a_plain_loader_can_be_saved_and_resumed_twice():
    torch.manual_seed(1)
    loader = plain(shuffle=True)
    iterator = iter(loader)
    whole = values([next(iterator)])
    for _ in range(4):
        ledger = through_json(loader.state_dict())
        torch.manual_seed(9)
        loader = plain(shuffle=True)
        loader.load_state_dict(ledger)
        assert through_json(loader.state_dict()) == ledger
        iterator = iter(loader)
        assert through_json(loader.state_dict())["batches"] == ledger["batches"]
        whole += values([next(iterator)])
    whole += values(iterator)
    assert sorted(itertools.chain(*whole)) == list(range(23))


def test_samplers_with_a_generator_or_batches_of_their_own_are_followed():
    def seeded():
        return plain(shuffle=True, generator=torch.Generator().manual_seed(4))

    def batched():
        sampler = BatchSampler(SequentialSampler(range(23)), 5, drop_last=True)
        return plain(batch_sampler=sampler, batch_size=1)

    for new in (seeded, batched):
        whole, loader = values(new()), new()
        iterator = iter(loader)
        next(iterator), next(iterator)
        resumed = new()
        resumed.load_state_dict(through_json(loader.state_dict()))
        assert values(resumed) == whole[2:]


def test_persistent_workers_go_on_as_well():
    torch.manual_seed(2)
    loader = plain(shuffle=True, num_workers=1, persistent_workers=True)
    whole, ledgers = [], []
    for batch in loader:
        whole += values([batch])
        ledgers.append(through_json(loader.state_dict()))
    again = []
    for number, batch in enumerate(loader):
        again += values([batch])
        if number == 2:
            break
    loader.load_state_dict(ledgers[1])
    assert values(loader) == whole[2:]
    assert sorted(itertools.chain(*values(loader))) == list(range(23))
    loader.close()


def test_a_plain_ledger_of_another_batch_size_is_refused():
    ledger = plain().state_dict()
    with pytest.raises(ValueError, match="resume with the same batch_size"):
        plain(batch_size=8).load_state_dict(ledger)
