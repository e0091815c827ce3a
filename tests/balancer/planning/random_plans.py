"""Small plans with every option drawn, by a number."""

import hashlib
from typing import Any

import numpy as np

from counterpoise.balancer import Balance, PlanConfig, Window, make_planner

RESOURCES = ("tiles", "tokens", "frames")
EVERY = (
    {"grouping": "fixed"}, {"grouping": "balanced"}, {"grouping": "balanced", "counts": "equal"},
    {"grouping": "balanced", "work": {"tokens": 3, "attention_pairs": 1}},
    {"grouping": "balanced", "mode": "window"}, {"grouping": "balanced", "mode": "epoch"},
    {"grouping": "balanced", "partition": "greedy"}, {"grouping": "balanced", "work": "padded"},
    {"grouping": "balanced", "work": "padded", "counts": "free"},
    {"grouping": "isf", "mode": "window"},
)  # fmt: skip


def random_case(seed: int) -> tuple[PlanConfig, Window]:
    """A plan of some 10 to 40 samples with every option drawn, and a window for it."""
    draw = np.random.default_rng(seed)
    options: dict[str, Any] = dict(EVERY[seed % len(EVERY)])
    ranks, accumulate = int(draw.integers(1, 4)), int(draw.integers(1, 4))
    size = int(draw.integers(1, 4))
    resources = RESOURCES[: draw.integers(2, 4)]
    costs = draw.integers(0, 10 ** draw.integers(1, 11, len(resources)), (40, len(resources)))
    counted = options["grouping"] == "fixed"
    needs_budgets = options["grouping"] == "isf" or options.get("mode") in ("window", "epoch")
    if not counted and (needs_budgets or draw.integers(2)):
        some = resources if needs_budgets else resources[: draw.integers(1, 3)]
        most = costs.max(axis=0) * draw.integers(1, 8) + draw.integers(2)
        options["budgets"] = {name: int(most[k]) for k, name in enumerate(some)}
    if options.get("partition") is None:
        options["waits"] = ("microbatch", "step")[draw.integers(2)]
    balance = Balance(
        seed=int(draw.integers(2**40)),
        accumulate=accumulate if counted else "auto",
        oversize="refuse" if "counts" in options else ("alone", "refuse")[draw.integers(2)],
        **options,
    )
    config = PlanConfig.from_balance(
        balance,
        ranks=ranks,
        resources=resources,
        samples_per_step=ranks * accumulate * size if counted else int(draw.integers(10, 40)),
        batch_size=size if counted else None,
        accumulate_from=accumulate,
    )
    most_samples = min(40, make_planner(config).window_samples)
    return config, Window(1, 2, 8, costs[:most_samples], last=True)


def digest_of(seed: int) -> str:
    """Return a digest of a random plan."""
    config, window = random_case(seed)
    found = make_planner(config).plan(window)
    text = repr((found.consumed, found.oversize, tuple(found.batches)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
