"""A trainer at a balancer that plays all ranks gets what the local loop gives it, byte by byte."""

import random
from typing import Any

import pytest
import torch

from counterpoise.loader import Balance, DataLoader
from tests.loader import balanced_data as made
from tests.loader.remote.balancer_here import BalancerHere

COUNT = 60


class Served(made.Augmented):
    """Samples that workers elsewhere could read."""

    def spec(self) -> dict[str, Any]:
        """Return what they would be told."""
        return {"source": "made"}


@pytest.fixture(autouse=True)
def _new_wing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERPOISE_WING", "pools")


def loader(data: Any, balancer: str | None = None, **more: Any) -> DataLoader:
    balance: Any = {"accumulate": 2, "samples_per_step": 8} | more.pop("balance", {})
    given: Any = {"virtual_ranks": 2, "shuffle": True, "timeout": 20} | more
    return DataLoader(data, balance=Balance(**balance), balancer=balancer, **given)


def taken(loader: DataLoader) -> list[Any]:
    """Return what is said of each microbatch of an epoch, and its bytes."""
    infos = ((info, batch) for batch, info in loader.with_info())
    return [(repr(info), made.digest(batch)) for info, batch in infos]


def drawing(samples: list[Any]) -> Any:
    """Collate with random numbers."""
    numbers = [random.random(), float(torch.rand(()))]
    return {"numbers": numbers, "labels": [torch.from_numpy(s["labels"]) for s in samples]}


@pytest.mark.parametrize(
    "given",
    [
        {"balance": {"layout": "packed"}},
        {"balance": {"layout": "padded"}},
        {"collate_fn": made.as_list},
        {"collate_fn": drawing},
        {"balance": {"layout": "packed"}, "fields": {"input_ids", "labels"}},
    ],
)
def test_batches_are_those_of_the_local_loop(given: dict[str, Any]) -> None:
    data = Served(COUNT)
    with BalancerHere(data) as balancer:
        remote = loader(data, balancer.address, **given)
        found = [taken(remote), taken(remote)]
        remote.close()
    local = loader(data, **given)
    assert found == [taken(local), taken(local)]
    assert balancer.relayed == 0
