"""`make bench NAME=padded`: plans of a step whose batches are padded.

The step's time is the sum over rows (microbatches side by side) of the most that one of them costs:
count x longest, and with the square count x (longest + longest squared / 1000); with tiles the most
tiles of a microbatch too, 307 tokens each. All plans have the same samples: those of the shuffle.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import click
import numpy as np
from rich.table import Table

from counterpoise.balancer.planning.kernels.arrays import Int64
from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.config import GlobalBatch, PlanConfig, Window
from counterpoise.balancer.planning.problem.metrics import TILE_TOKENS
from counterpoise.balancer.planning.problem.options import Counts
from counterpoise.balancer.planning.problem.shuffle import permutation
from counterpoise.tools.console.reporting import emit

from ..baselines.padded_batches import (
    Rows,
    free_counts,
    in_order,
    installed_rebalance,
    like_sizes,
    slot_by_slot,
)
from .costs import read_costs

UNIT = 1000  # time units of a token: of a pair of attention one
CASES = ("linear", "square", "linear with tiles", "square with tiles")


@click.command("padded", epilog="Example: make bench NAME=padded ARGS='--ranks 8 --json'")
@click.option("--costs", type=click.Path(path_type=Path), help="npz file with tiles and tokens.")
@click.option("--ranks", default=32, show_default=True)
@click.option("--accumulate", default=16, show_default=True)
@click.option("--samples", default=100_000, show_default=True, help="Without --costs: how many.")
@click.option("--each", default=8, show_default=True, help="Samples of a microbatch.")
@click.option("--steps", default=50, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(
    costs: Path | None, ranks: int, accumulate: int, samples: int, each: int, steps: int,
    seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Compare whole steps of padded microbatches, without budgets.

    Without --costs: of lengths from lognormal(5.5, .8).
    """
    tokens, tiles = lognormal_lengths(samples, seed), None
    if costs is not None:
        table = read_costs(costs, ("tiles", "tokens"), samples, seed)
        tokens, tiles = table.column("tokens"), table.column("tiles")
    found = compare_padded(tokens, tiles, ranks, accumulate, each, steps, seed)
    emit(found, as_json, as_table(found))


def lognormal_lengths(samples: int, seed: int) -> Int64:
    """Return lengths (n,) of lognormal(5.5, .8), from 8 to 4,096: many texts are like that."""
    drawn = np.random.default_rng(seed).lognormal(5.5, 0.8, samples)
    return drawn.clip(8, 4096).astype(np.int64)


def compare_padded(
    tokens: Int64,
    tiles: Int64 | None,
    ranks: int,
    accumulate: int,
    each: int,
    steps: int,
    seed: int,
) -> dict[str, object]:  # fmt: skip
    """Return each plan's time over that of random order: medians of `steps` steps, and CPU ms.

    ours_over_baseline: free counts over the least of all baselines, step by step, in the median.
    """
    size = ranks * accumulate * each
    if size > len(tokens):
        raise ValueError(f"{len(tokens)} samples fill no step of {size}: ask for a smaller one")
    peer, rebalance = installed_rebalance()
    cases = CASES if tiles is not None else CASES[:2]
    report: dict[str, object] = {
        "ranks": ranks, "accumulate": accumulate, "each": each, "steps": steps, "peer": peer,
    }  # fmt: skip
    found: dict[str, object] = {}
    for case in cases:
        square = case.startswith("square")
        with_tiles = tiles if case.endswith("tiles") else None
        plans = _plans(ranks, accumulate, size, square, with_tiles is not None, rebalance)
        found[case] = _case(tokens, with_tiles, ranks, size, steps, seed, square, plans)
    return report | {"cases": found}


Plan = Callable[[Int64, Int64], Rows | GlobalBatch]  # (tokens, tiles) of a step


def _plans(
    ranks: int, rows: int, size: int, square: bool, tiles: bool, rebalance: Callable[..., Rows]
) -> dict[str, Plan]:
    def sizes(tokens: Int64) -> Int64:
        return UNIT * tokens + (tokens * tokens if square else 0)

    def ours(counts: Counts | None, padded: bool) -> Plan:
        return _product(ranks, rows, size, square, tiles, counts, padded)

    return {
        "random": lambda tokens, _: in_order(len(tokens), ranks, rows),
        "sums": ours(None, padded=False),
        "transformers": lambda tokens, _: rebalance(tokens, ranks, rows, square / UNIT),
        "prototype, equal": lambda tokens, _: like_sizes(sizes(tokens), ranks, rows),
        "prototype, free": lambda tokens, _: free_counts(sizes(tokens), ranks, rows),
        "prototype, slots": lambda tokens, _: slot_by_slot(sizes(tokens), ranks, rows),
        "ours, equal": ours("equal", padded=True),
        "ours, free": ours("free", padded=True),
    }


def _product(
    ranks: int, rows: int, size: int, square: bool, tiles: bool, counts: Counts | None, padded: bool
) -> Plan:
    """Return the product's planner for one step."""
    names = ("tokens", "tiles") if tiles else ("tokens",)
    times = {"tokens": UNIT, "attention_pairs": 1 if square else 0, "tiles": TILE_TOKENS * UNIT}
    named = [(name, times[name]) for name in ("attention_pairs", *names) if times[name]]
    planner = make_planner(
        PlanConfig(
            ranks, size, rows, names, (None,) * len(names), counts=counts,
            padded=("tokens",) if padded else (), time_ns=tuple(sorted(named)) if padded else (),
        )
    )  # fmt: skip

    def plan(tokens: Int64, added: Int64) -> GlobalBatch:
        costs = np.stack([tokens, added], axis=1) if tiles else tokens[:, None]
        (batch,) = planner.plan(Window(0, 0, 0, costs, last=True)).batches
        return batch

    return plan


def _rows_of(found: Rows | GlobalBatch) -> Rows:
    """Return a plan's microbatches of each row."""
    if not isinstance(found, GlobalBatch):
        return found
    return [[list(m.ordinals) for m in row] for row in zip(*found.ranks, strict=True)]


def _case(
    tokens: Int64, tiles: Int64 | None, ranks: int, size: int, steps: int, seed: int,
    square: bool, plans: dict[str, Plan],
) -> dict[str, object]:  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in (*plans, "bound")}
    taken: dict[str, list[float]] = {name: [] for name in plans}
    for step in range(steps):
        some = permutation(len(tokens), seed, step)[:size]
        lengths, added = tokens[some], np.zeros(size, np.int64) if tiles is None else tiles[some]
        work = UNIT * lengths + (lengths * lengths if square else 0)
        for name, plan in plans.items():
            begin = time.process_time()
            found = plan(lengths, added)
            taken[name].append((time.process_time() - begin) * 1000)
            times[name].append(_time(work, added * TILE_TOKENS * UNIT, _rows_of(found)))
        times["bound"].append((int(work.sum()) + int(added.sum()) * TILE_TOKENS * UNIT) / ranks)
    whole = np.array(times["random"])
    best = np.min([times[n] for n in plans if not n.startswith("ours")], axis=0)
    return {
        "over_random": {n: float(np.median(np.array(v) / whole)) for n, v in times.items()},
        "milliseconds": {name: float(np.median(each)) for name, each in taken.items()},
        "ours_over_baseline": float(np.median(np.array(times["ours, free"]) / best)),
        "worst_over_random": float((np.array(times["ours, equal"]) / whole).max()),
    }


def _time(work: Int64, added: Int64, rows: Rows) -> int:
    """Return the step's time: over rows the most padded work, and the most of what adds up."""
    whole = 0
    for row in rows:
        whole += max(len(m) * int(work[m].max()) if m else 0 for m in row)
        whole += max(int(added[m].sum()) if m else 0 for m in row)
    return whole


def as_table(report: dict[str, object]) -> Table:
    """Return the report as a table: a row for each plan, a column for each case."""
    cases = cast(dict[str, dict[str, dict[str, float]]], report["cases"])
    title = f"{report['ranks']} ranks x {report['accumulate']} x {report['each']}, padded"
    shown = Table(title=f"{title}: time over random order's", caption=f"peer: {report['peer']}")
    shown.add_column("plan")
    for case in cases:
        shown.add_column(case, justify="right")
        shown.add_column("CPU ms", justify="right")
    for name in next(iter(cases.values()))["over_random"]:
        cells = []
        for one in cases.values():
            taken = one["milliseconds"].get(name)
            cells += [f"{one['over_random'][name]:.4f}", "" if taken is None else f"{taken:.2f}"]
        shown.add_row(name, *cells)
    return shown
