"""Cases of `make bench NAME=rollouts`: lengths of rollouts, and the cells that are measured."""

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from counterpoise.balancer.planning.kernels.arrays import Int64

LengthsName = Literal["lognormal", "tail"]
LENGTHS: tuple[LengthsName, ...] = ("lognormal", "tail")
# verl's weights: what a rollout of n tokens takes is 24,576 n + n^2
WEIGHTS = {"tokens": 24_576, "attention_pairs": 1}
# The longest rollout where microbatches have budgets, the smallest of which is 8,192
LONGEST_IN_BUDGET = 8_000


@dataclass(frozen=True, slots=True)
class RolloutCell:
    """Rollouts in memory, the ranks that take them, and the tokens of a microbatch, if limited."""

    items: int
    ranks: int
    budget: int | None = None

    def __str__(self) -> str:
        limit = "" if self.budget is None else f", {self.budget:,}"
        return f"{self.items:,} x {self.ranks:,}{limit}"


def parse_cell(text: str) -> RolloutCell:
    """Return the cell of a text such as "4096x64" or "4096x64x16384"; else ValueError.

    >>> str(parse_cell("4096x64x16384"))
    '4,096 x 64, 16,384'
    """
    if not re.fullmatch(r"\d+x\d+(x\d+)?", text):
        raise ValueError(f"--cell got {text!r}; give ROLLOUTSxRANKS or ROLLOUTSxRANKSxBUDGET")
    return RolloutCell(*(int(part) for part in text.split("x")))


# Without budgets: from one rollout a rank to thousands, and numbers that do not divide
QUICK_DEALS = (
    "4x4 7x4 32x4 206x4 256x4 512x8 515x8 4096x8 48x64 64x64 512x64 4096x64 4103x64 512x512 "
)
DEALS = QUICK_DEALS + "4096x512 32768x512 32771x512 65536x8 65536x64 65536x512 262144x1024"
QUICK_BUDGETS = (
    "256x4x4096 206x4x8192 256x4x8192 512x8x8192 512x8x32768 4096x64x16384 4103x64x16384"
)
BUDGETS = QUICK_BUDGETS + " 4096x8x32768 32768x512x16384"


def default_cells(quick: bool) -> list[RolloutCell]:
    """Return the cells that are measured without --cell."""
    names = f"{QUICK_DEALS} {QUICK_BUDGETS}" if quick else f"{DEALS} {BUDGETS}"
    return [parse_cell(name) for name in names.split()]


def draw_lengths(name: LengthsName, cell: RolloutCell, seed: int) -> Int64:
    """Return seeded lengths (items,): lognormal up to 32,768, or a Pareto tail up to 131,072."""
    rng = np.random.default_rng(seed)
    if name == "lognormal":
        lengths = rng.lognormal(6.5, 0.8, cell.items).clip(16, 32_768)
    else:
        lengths = (200 * (rng.pareto(1.1, cell.items) + 1)).clip(16, 131_072)
    if cell.budget is not None:
        lengths = lengths.clip(max=LONGEST_IN_BUDGET)
    return lengths.astype(np.int64)


def weigh(lengths: Int64) -> Int64:
    """Return the work (items,) of rollouts by verl's weights.

    >>> weigh(np.array([2])).tolist()
    [49156]
    """
    return WEIGHTS["tokens"] * lengths + WEIGHTS["attention_pairs"] * lengths * lengths
