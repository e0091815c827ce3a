"""A mixture of three small sources, and a balanced loop over it."""

import random
from typing import Any

import numpy as np

import counterpoise as cp
from counterpoise.workers import PlainSource, Probe

SIZES = {"web": 90, "docs": 40, "small": 7}
WEIGHTS = {"web": 3, "docs": 2, "small": 1}


def source(name: str, drawn: bool = False) -> PlainSource:
    def item(index: int) -> dict[str, Any]:
        sample = {"id": f"{name}-{index}", "n": lengths[index]}
        return {**sample, "draw": random.random()} if drawn else sample

    lengths = np.random.default_rng(len(name)).integers(1, 60, SIZES[name]).tolist()
    return PlainSource(Items(item, SIZES[name]), cost={"tokens": lengths})


class Items:
    """A data set whose samples a function makes."""

    def __init__(self, item: Any, count: int) -> None:
        self.item, self.count = item, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.item(index)


def mixture(drawn: bool = False, **others: Any) -> cp.Mixture:
    given = {name: (source(name, drawn), WEIGHTS[name]) for name in SIZES}
    return cp.Mixture(given, **{"epoch": 240, **others})


def loader(data: Any, workers: int = 0, ranks: int = 2, **others: Any) -> Any:
    balance = others.pop("balance", None) or cp.Balance(
        budgets={"tokens": 120}, samples_per_step=24, accumulate="auto", seed=3
    )
    return cp.DataLoader(
        data, balance=balance, shuffle=True, num_workers=workers, ranks=cp.Ranks(virtual=ranks),
        collate_fn=list, **others,
    )  # fmt: skip


def steps_of(loader: Any) -> list[list[str]]:
    return [sorted(key for info in step.infos for key in info.keys) for step in loader.steps()]


def expected(data: cp.Mixture, epoch: int = 0, seed: int = 3) -> list[str]:
    return [data.rows.key(row) for row in data.rows.recipe.order(seed, epoch, True).tolist()]


class Tiles:
    """A source whose samples cost another resource, too."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return {"id": f"tiles-{index}"}

    def key(self, index: int) -> str:
        return str(index)

    def probe(self, index: int) -> Probe:
        return Probe(str(index), {"tiles": 2, "tokens": 30 + index})
