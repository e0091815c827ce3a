"""A balanced loader or sampler may be made before its process knows its rank."""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from counterpoise import Ranks
from counterpoise.loader import Balance, BalancedBatchSampler, DataLoader

COUNT = 24
BALANCE = Balance("fixed", samples_per_step=8, accumulate=2)


def loader(**more: Any) -> DataLoader:
    return DataLoader(list(range(COUNT)), 4, shuffle=True, balance=BALANCE, **more)


def sampler(**more: Any) -> BalancedBatchSampler:
    balance = Balance("fixed", accumulate=2)
    return BalancedBatchSampler({"n": [1] * COUNT}, balance, batch_size=4, **more)


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, int], None]]:
    """This process is one of two that torchrun started; return what inits its process group."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")

    def init(rank: int, world: int) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)

    yield init
    if dist.is_initialized():
        dist.destroy_process_group()


USES: dict[str, Callable[[Any], object]] = {
    "iter": iter, "len": len, "num_steps": lambda loader: loader.num_steps,
    "steps": lambda loader: loader.steps(), "state_dict": lambda loader: loader.state_dict(),
    "load_state_dict": lambda loader: loader.load_state_dict({}),
}  # fmt: skip


@pytest.mark.usefixtures("torchrun")
@pytest.mark.parametrize("use", USES)
def test_several_processes_without_a_group_are_refused_at_the_first_use(use: str) -> None:
    made = loader()
    made.set_epoch(3)
    assert made.left_out == 0
    made.close()
    with pytest.raises(ValueError, match=r"WORLD_SIZE is 2, .*init_process_group.*before"):
        USES[use](made)


@pytest.mark.usefixtures("torchrun")
@pytest.mark.parametrize("use", ["iter", "len", "state_dict"])
def test_so_is_a_sampler(use: str) -> None:
    made = sampler()
    made.set_epoch(3)
    with pytest.raises(ValueError, match=r"WORLD_SIZE is 2, .*init_process_group.*before"):
        list(made) if use == "iter" else USES[use](made)


@pytest.mark.usefixtures("torchrun")
def test_ranks_that_are_given_as_numbers_need_no_group() -> None:
    assert len(loader(ranks=Ranks(virtual=1))) == 6
    assert len(sampler(ranks=(0, 2))) == 4
    one = Balance("fixed", accumulate=1)
    given: Any = {"shuffle": True, "balance": one}
    assert len(DataLoader(list(range(COUNT)), 4, ranks=(1, 2), **given)) == 3


@pytest.mark.usefixtures("torchrun")
def test_a_plain_loader_does_as_torchs() -> None:
    assert len(list(DataLoader(list(range(COUNT)), 4))) == 6


def test_the_group_may_come_after_the_loader(torchrun: Any) -> None:
    made, sampled = loader(), sampler()
    torchrun(1, 2)
    with pytest.raises(ValueError, match="2 ranks x 2 microbatches x 4 samples are 16"):
        len(made)
    four = Balance("fixed", accumulate=2)
    assert DataLoader(list(range(32)), 4, shuffle=True, balance=four).num_steps == 2
    assert sampled.rank == 1
    assert sampled.config.ranks == 2


def test_ranks_that_change_are_an_error_that_names_load_state_dict(torchrun: Any) -> None:
    torchrun(0, 1)
    balance = Balance(samples_per_step=8, accumulate=1)
    made = DataLoader(list(range(COUNT)), shuffle=True, balance=balance, cost=lambda _: {"n": 1})
    batches = iter(made)
    first = next(batches).tolist()
    state = made.state_dict()
    torchrun(1, 2)
    for use in (iter, DataLoader.steps):
        with pytest.raises(ValueError, match=r"rank 0 of 1 .* rank 1 of 2 now: .*load_state_dict"):
            use(made)
    assert made.state_dict() == state
    made.load_state_dict(state)
    assert made.num_steps == 3
    assert made._balanced is not None
    assert made._balanced.ranks == (1,)
    torchrun(0, 1)
    made.load_state_dict(state)
    rest = [batch.tolist() for batch in made]
    made.close()
    assert sorted(chain(first, *rest)) == list(range(COUNT))


def test_a_sampler_whose_ranks_change_is_an_error(torchrun: Any) -> None:
    torchrun(0, 1)
    made = sampler()
    assert sorted(chain.from_iterable(made)) == list(range(COUNT))
    torchrun(1, 2)
    with pytest.raises(ValueError, match="rank 1 of 2 now: make a new sampler"):
        next(iter(made))
