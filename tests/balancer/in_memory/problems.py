"""Random problems for `cp.partition`, and what any partition must keep."""

from dataclasses import dataclass
from typing import Any

import numpy as np

import counterpoise as cp
from counterpoise.balancer.in_memory.partition import Partition
from counterpoise.balancer.planning.kernels.arrays import Int64

VERL = {"tokens": 24576, "attention_pairs": 1}  # the weights of verl's rule


@dataclass(frozen=True)
class Problem:
    """A call of partition; tokens (n,) are the lengths of its items."""

    kind: str
    tokens: Int64
    costs: Any
    ranks: int
    options: dict[str, Any]

    def partition(self) -> Partition:
        return cp.partition(self.costs, self.ranks, **self.options)


def draw_lengths(kind: str, items: int, rng: np.random.Generator) -> Int64:
    """Return lengths of rollouts (items,): lognormal, or long-tailed (Pareto 1.1)."""
    if kind == "lognormal":
        lengths = rng.lognormal(6.5, 0.8, items)
    else:
        lengths = (rng.pareto(1.1, items) + 1) * 200
    return np.clip(lengths, 16, 32768).astype(np.int64)


def draw_problem(seed: int) -> Problem:
    """Return a problem with some of all options."""
    rng = np.random.default_rng(seed)
    items = int(rng.integers(0, 5001 if rng.random() < 0.5 else 200))
    ranks = int(rng.integers(1, 65))
    kind = str(rng.choice(["lognormal", "tail"]))
    tokens = draw_lengths(kind, items, rng)
    costs: Any = tokens
    options: dict[str, Any] = {"counts": str(rng.choice(["equal", "free"]))}
    if options["counts"] == "equal":
        options["remainder"] = str(rng.choice(["keep", "repeat", "drop"]))
    if rng.random() < 0.4:
        options["budgets"] = int(rng.choice([32768, 65536]))
    for name in ("min_microbatches", "multiple_of"):
        if rng.random() < 0.3:
            options[name] = int(rng.integers(1, 5))
    work = str(rng.choice(["packed", "padded", "time", "loads", "resources"]))
    if work == "padded":
        options["work"] = "padded"
    elif work == "time":
        options["work"] = VERL
    elif work == "loads":
        options["loads"] = rng.random(items) * 10.0 ** int(rng.integers(-3, 15))
    elif work == "resources":
        costs = {"tokens": tokens, "tiles": rng.integers(0, 13, items)}
        if "budgets" in options:
            options["budgets"] = {"tokens": options["budgets"], "tiles": 24}
    if rng.random() < 0.3:
        by_eights = rng.random() < 0.5
        drawn = rng.integers(0, max(1, items // 5), items)
        options["groups"] = np.arange(items) // 8 if by_eights else drawn
        options["keep_groups"] = str(rng.choice(["together", "spread"]))
    if rng.random() < 0.15 and work != "padded":
        options["keep_order"] = True
    if rng.random() < 0.2:
        options["speeds"] = rng.random(ranks) + 0.5
    return Problem(kind, tokens, costs, ranks, options)


def check_partition(problem: Problem, dealt: Partition) -> None:
    """Assert what every partition of a problem keeps."""
    items, options = len(problem.tokens), problem.options
    placed = np.array([index for rank in dealt.ranks for index in rank], dtype=np.int64)
    is_first = np.array([weight for rank in dealt.weights for weight in rank]) == 1
    assert sorted([*placed[is_first], *dealt.dropped]) == list(range(items))
    assert sorted(placed[~is_first]) == sorted(dealt.repeated)
    stays = np.setdiff1d(np.arange(items), dealt.dropped)
    assert (placed[dealt.inverse[stays]] == stays).all()
    counts = [len(rank) for rank in dealt.ranks]
    assert len(counts) == problem.ranks
    if options["counts"] == "equal":
        assert max(counts) - min(counts) <= (options["remainder"] == "keep")
        assert len(dealt.dropped) + len(dealt.repeated) < problem.ranks
    else:
        assert (dealt.dropped, dealt.repeated) == ((), ())
    (microbatches,) = {len(rank) for rank in dealt.microbatches}
    assert microbatches >= options.get("min_microbatches", 1)
    assert microbatches % options.get("multiple_of", 1) == 0
    assert dealt.work.shape == (problem.ranks, microbatches)
    for rank, cells in zip(dealt.ranks, dealt.microbatches, strict=True):
        assert [index for cell in cells for index in cell] == rank
        assert all(sorted(cell) == cell for cell in cells)
        if options.get("keep_order"):
            assert sorted(rank) == rank
    _check_budgets(problem, dealt)
    _check_groups(problem, dealt)


def _check_budgets(problem: Problem, dealt: Partition) -> None:
    budgets = problem.options.get("budgets", {})
    budgets = budgets if isinstance(budgets, dict) else {"tokens": budgets}
    costs = problem.costs if isinstance(problem.costs, dict) else {"tokens": problem.costs}
    for name, most in budgets.items():
        for cell in (costs[name][cell] for rank in dealt.microbatches for cell in rank if cell):
            is_padded = problem.options.get("work") == "padded"
            assert (len(cell) * cell.max() if is_padded else cell.sum()) <= most


def _check_groups(problem: Problem, dealt: Partition) -> None:
    if "groups" not in problem.options or not len(problem.tokens):
        return
    groups = np.unique(problem.options["groups"], return_inverse=True)[1]
    held = np.zeros((problem.ranks, groups.max() + 1), dtype=np.int64)
    for rank, (indices, weights) in enumerate(zip(dealt.ranks, dealt.weights, strict=True)):
        for index, weight in zip(indices, weights, strict=True):
            held[rank, groups[index]] += int(weight)
    if problem.options["keep_groups"] == "together":
        assert ((held > 0).sum(axis=0) <= 1).all()
    else:
        assert (held.max(axis=0) - held.min(axis=0) <= 1).all()
