"""Costs that the benches plan: from a table, or a seeded synthetic set."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from counterpoise.balancer.planning.kernels.arrays import Int64
from counterpoise.tools.inputs.files import open_table


@dataclass(frozen=True, slots=True)
class CostTable:
    """Costs (n, resources) of named resources, and the source of each sample (n,)."""

    resources: tuple[str, ...]
    costs: Int64
    sources: Int64

    def column(self, name: str) -> Int64:
        """Return one resource's costs; zeros if it is not there."""
        if name not in self.resources:
            return np.zeros(len(self.costs), dtype=np.int64)
        return self.costs[:, self.resources.index(name)]


def read_costs(path: Path | None, resources: tuple[str, ...], samples: int, seed: int) -> CostTable:
    """Return the table's columns of those names, or `samples` synthetic ones if path is None.

    The table's column `source` (small integers) is used if it exists. Raises ValueError as
    `Table.costs` does.
    """
    if path is None:
        return synthetic(samples, seed)
    table = open_table(path)
    if "source" not in table.names:
        costs = table.costs(resources)
        return CostTable(resources, costs, np.zeros(len(costs), np.int64))
    costs = table.costs((*resources, "source"))
    return CostTable(resources, costs[:, :-1], costs[:, -1])


def synthetic(samples: int, seed: int) -> CostTable:
    """Return seeded costs of a vision-language mix: text, single images, tiled documents."""
    rng = np.random.default_rng(seed)
    source = rng.choice(3, size=samples, p=[0.2, 0.5, 0.3]).astype(np.int64)
    tiles = np.where(source == 0, 0, np.where(source == 1, 1, rng.integers(2, 8, samples)))
    text = np.rint(np.exp(rng.normal(5.5, 0.8, samples))).astype(np.int64)
    tokens = np.clip(text + 200 * tiles, 20, 4096)
    return CostTable(("tiles", "tokens"), np.stack([tiles, tokens], axis=1), source)
