"""Reads costs for the planning benches, from an npz file or a seeded synthetic set, and budgets."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...balancer.planning.kernels.arrays import Int64
from ...balancer.planning.problem.metrics import TILE_TOKENS


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
    """Return the npz file's arrays of those names, or `samples` synthetic ones if path is None.

    The file's array `source` (small integers) is used if it exists. Raises ValueError if a
    named array is missing.
    """
    if path is None:
        return synthetic(samples, seed)
    with np.load(path, allow_pickle=False) as arrays:
        missing = [name for name in resources if name not in arrays]
        if missing:
            raise ValueError(f"{path} has no array {missing[0]!r}; it has {sorted(arrays)}")
        costs = np.stack([arrays[name].astype(np.int64) for name in resources], axis=1)
        some = "source" in arrays
        sources = arrays["source"].astype(np.int64) if some else np.zeros(len(costs), np.int64)
    return CostTable(resources, costs, sources)


def synthetic(samples: int, seed: int) -> CostTable:
    """Return seeded costs of a vision-language mix: text, single images, tiled documents."""
    rng = np.random.default_rng(seed)
    source = rng.choice(3, size=samples, p=[0.2, 0.5, 0.3]).astype(np.int64)
    tiles = np.where(source == 0, 0, np.where(source == 1, 1, rng.integers(2, 8, samples)))
    text = np.rint(np.exp(rng.normal(5.5, 0.8, samples))).astype(np.int64)
    tokens = np.clip(text + 200 * tiles, 20, 4096)
    return CostTable(("tiles", "tokens"), np.stack([tiles, tokens], axis=1), source)


def parse_budgets(texts: tuple[str, ...]) -> dict[str, int]:
    """Return {resource: budget} from texts like tiles=9; raises ValueError if one is malformed.

    >>> parse_budgets(("tiles=9", "tokens=4096"))
    {'tiles': 9, 'tokens': 4096}
    """
    budgets = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not value.isdigit() or not int(value):
            raise ValueError(f"--budget got {text!r}; write RESOURCE=AMOUNT, such as tokens=4096")
        budgets[name] = int(value)
    return budgets


def token_time(table: CostTable, loads: Int64) -> tuple[Int64, Int64]:
    """Return encoder and LLM work of loads (..., resources) in token equivalents: 307 a tile."""
    names = table.resources
    encoder = np.zeros(loads.shape[:-1], dtype=np.int64)
    if "tiles" in names:
        encoder = loads[..., names.index("tiles")] * TILE_TOKENS
    others = [k for k, name in enumerate(names) if name != "tiles"]
    llm: Int64 = loads[..., others[0]] if others else np.zeros_like(encoder)
    return encoder, llm
