"""Loaders over samples that workers elsewhere could read."""

import random
from typing import Any

import torch

from counterpoise import Balancer, Ranks
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.job_spec import JobSpec
from counterpoise.loader import DataLoader
from counterpoise.loader.assembly import choose_connection, read_settings
from counterpoise.loader.balanced.settings import LoopSettings
from counterpoise.loader.remote_dataset import RemoteDataset
from counterpoise.loader.step.ranks import Place
from counterpoise.workers import Source
from tests.flat_options import flat_balance
from tests.loader import balanced_data as made

COUNT = 60
JOB = JobSpec(PlanConfig(1, 2, 1, ("tokens",), (None,), "fixed", batch_size=2))


class Served(made.Augmented, Source):
    """Samples that workers elsewhere could read; some are too large for a head."""

    def spec(self) -> dict[str, Any]:
        """Return what they would be told."""
        return {"source": "made"}

    def __getitem__(self, index: int) -> Any:
        tiles, _ = self.sizes(index)
        return super().__getitem__(index) | {"map": torch.full((tiles, 300), float(index))}


def make_loader(data: Any, balancer: str | None = None, **more: Any) -> DataLoader:
    """Return a loader of two ranks in this process."""
    balance: Any = {"accumulate": 2, "samples_per_step": 8} | more.pop("balance", {})
    given: Any = {"ranks": Ranks(virtual=2), "shuffle": True, "timeout": 8} | more
    return DataLoader(data, balance=flat_balance(**balance), balancer=balancer, **given)


def connect_to(address: str, job_name: str | None = None) -> Any:
    """Return a trainer's connection to a balancer at an address, which is opened at first use."""
    loader = DataLoader(
        RemoteDataset("*.tar"), 2, False, balance="fixed", balancer=Balancer(address, job=job_name)
    )
    assert loader._arguments is not None
    local = read_settings(loader, loader._arguments)
    return choose_connection(LoopSettings(JOB, local, Place((0,), 1)))()


def described(batch: Any, info: Any) -> tuple[str, str]:
    """Return what is said of a microbatch, and the digest of its bytes."""
    return repr(info), made.digest(batch)


def taken(loader: DataLoader) -> list[tuple[str, str]]:
    """Return what an epoch has."""
    return [described(batch, info) for batch, info in loader.with_info()]


def drawing(samples: list[Any]) -> Any:
    """Collate with random numbers; raises for no samples."""
    numbers = [random.random(), float(torch.rand(()))]
    return {"numbers": numbers, "labels": torch.from_numpy(samples[0]["labels"])}


def padded(samples: list[Any]) -> Any:
    """Pad labels, of which some are masked by chance."""
    longest = max((len(each["labels"]) for each in samples), default=1)
    rows = torch.full((len(samples), longest), -100)
    for row, sample in zip(rows, samples, strict=True):
        row[: len(sample["labels"])] = torch.from_numpy(sample["labels"])
    return {"labels": torch.where(torch.rand(rows.shape) < 0.3, -100, rows)}
