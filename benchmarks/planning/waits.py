"""`make bench NAME=waits`: how long ranks wait, after every microbatch or once a step.

Steps hold what the shuffle gives them, without budgets, so the whole of it is how samples are
spread. A loop waits after every microbatch where ranks communicate in each (FSDP, tensor parallel
encoders), and once a step where they do not (DDP's accumulation with no_sync). Efficiency is work
over time; nobody can beat the bound (`bounds.py`).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from rich.table import Table

from counterpoise.balancer.planning.kernels.arrays import Int64
from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.config import PlanConfig, Window
from counterpoise.balancer.planning.problem.metrics import TILE_TOKENS
from counterpoise.balancer.planning.problem.options import Waits
from counterpoise.balancer.planning.problem.shuffle import permutation
from counterpoise.tools.console.reporting import emit, progress_console

from ..baselines.step_greedy import greedy_rows, loads_of, single_key
from .bounds import least_rows, least_slowest
from .costs import CostTable, read_costs
from .image_sizes import read_image_sizes

WORK = np.array([TILE_TOKENS, 1])  # of a tile and of a token, in tokens


@dataclass(frozen=True, slots=True)
class SpreadCase:
    """One step: costs (n, 2) tiles and tokens; ranks, and microbatches of each in `accumulate`."""

    costs: Int64
    ranks: int
    accumulate: int
    seed: int


def _planned(waits: Waits) -> Callable[[SpreadCase], Int64]:
    def plan(case: SpreadCase) -> Int64:
        """Return each sample's cell by the product's planner."""
        config = PlanConfig(
            ranks=case.ranks, samples_per_step=len(case.costs), accumulate=case.accumulate,
            resources=("tiles", "tokens"), budgets=(None, None), seed=case.seed, waits=waits,
        )  # fmt: skip
        window = Window(epoch=0, step=0, start=0, costs=case.costs, last=True)
        (batch,) = make_planner(config).plan(window).batches
        cell = np.empty(len(case.costs), dtype=np.int64)
        for number, microbatch in enumerate(m for rank in batch.ranks for m in rank):
            cell[list(microbatch.ordinals)] = number
        return cell

    return plan


STRATEGIES: dict[str, Callable[[SpreadCase], Int64]] = {
    "greedy": lambda case: greedy_rows(case.costs, case.ranks, case.accumulate),
    "single_key": lambda case: single_key(
        case.costs, case.costs @ WORK, case.ranks, case.accumulate
    ),
    "balanced, microbatch": _planned("microbatch"),
    "balanced, step": _planned("step"),
}


@click.command(
    "waits",
    epilog="Example: make bench NAME=waits ARGS='--ranks 8 --ranks 512 --accumulate 4 --json'",
)
@click.option(
    "--costs", type=click.Path(path_type=Path),
    help="npz file: tiles and tokens, or the sizes of images.",
)  # fmt: skip
@click.option(
    "--source", "sources", multiple=True, metavar="NAME",
    help="Only samples of this source: its number, or its name in a file of image sizes; repeat.",
)  # fmt: skip
@click.option("--ranks", "ranks", multiple=True, default=(8, 128, 512), show_default=True)
@click.option("--accumulate", "accumulates", multiple=True, default=(4, 16), show_default=True)
@click.option("--each", default=8, show_default=True, help="Samples of a microbatch, on average.")
@click.option("--draws", default=4, show_default=True, help="Steps to average over.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(
    costs: Path | None, sources: tuple[str, ...], ranks: tuple[int, ...],
    accumulates: tuple[int, ...], each: int, draws: int, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Compare plans for loops that wait after every microbatch with plans for once a step."""
    table = _read(costs, sources, seed)
    settings = []
    for count in ranks:
        for accumulate in accumulates:
            if count * accumulate * each > len(table.costs):
                continue
            progress_console.print(f"{count} ranks x {accumulate}")
            settings.append(_measure(table.costs, count, accumulate, each, draws, seed))
    if not settings:
        raise ValueError(f"{len(table.costs)} samples fill a step of no setting; ask for less")
    report: dict[str, object] = {
        "samples": len(table.costs),
        "sources": list(sources),
        "each": each,
        "draws": draws,
        "settings": settings,
    }
    emit(report, as_json, _as_table(settings))


def _read(path: Path | None, sources: tuple[str, ...], seed: int) -> CostTable:
    """Return the costs, of the named sources only."""
    names: list[str] = []
    if path is not None and _has_image_sizes(path):
        table, names = read_image_sizes(path)
    else:
        table = read_costs(path, ("tiles", "tokens"), 200_000, seed)
    if not sources:
        return table
    names = names or [str(number) for number in range(int(table.sources.max(initial=0)) + 1)]
    if unknown := [name for name in sources if name not in names]:
        raise ValueError(f"there is no source {unknown[0]!r}; there are {', '.join(names)}")
    chosen = np.isin(table.sources, [names.index(name) for name in sources])
    return CostTable(table.resources, table.costs[chosen], table.sources[chosen])


def _has_image_sizes(path: Path) -> bool:
    with np.load(path, allow_pickle=False) as arrays:
        return "img_offset" in arrays


def _measure(
    costs: Int64, ranks: int, accumulate: int, each: int, draws: int, seed: int
) -> dict[str, object]:
    """Return every strategy's efficiency and time, over all draws; a draw is a whole step."""
    size = ranks * accumulate * each
    found: dict[str, list[list[float]]] = {name: [] for name in ("bound", *STRATEGIES)}
    for draw in range(draws):
        order = permutation(len(costs), seed, draw)
        case = SpreadCase(np.ascontiguousarray(costs[order[:size]]), ranks, accumulate, seed + draw)
        whole = float((case.costs @ WORK).sum())
        least = [least_rows(case.costs[:, k], ranks, accumulate) * int(WORK[k]) for k in range(2)]
        best = least_slowest(case.costs @ WORK, ranks)
        found["bound"].append([whole, sum(least) * ranks, best * ranks, 0.0])
        for name, strategy in STRATEGIES.items():
            begin = time.process_time()
            cell = strategy(case)
            taken = (time.process_time() - begin) * 1000
            work = loads_of(case.costs, cell, ranks, accumulate) * WORK
            rows, sums = work.max(axis=0).sum(), work.sum(axis=(1, 2)).max()
            found[name].append([whole, float(rows) * ranks, float(sums) * ranks, taken])
    return {
        "ranks": ranks,
        "accumulate": accumulate,
        "strategies": {name: _figures(rows) for name, rows in found.items()},
    }


def _figures(rows: list[list[float]]) -> dict[str, object]:
    """Return efficiencies from (work, time by microbatch, time by step, CPU ms) of every draw."""
    work, rowwise, once, taken = np.array(rows).T
    return {
        "microbatch": float(work.sum() / max(1.0, rowwise.sum())),
        "microbatch_range": [float((work / rowwise).min()), float((work / rowwise).max())],
        "step": float(work.sum() / max(1.0, once.sum())),
        "milliseconds": float(np.median(taken)),
    }


def _as_table(settings: list[dict[str, object]]) -> Table:
    shown = Table(title="efficiency where ranks wait after every microbatch, and once a step")
    for column in ("ranks", "accumulate", "strategy", "microbatch", "step", "CPU ms"):
        shown.add_column(column, justify="left" if column == "strategy" else "right")
    for one in settings:
        strategies = one["strategies"]
        if isinstance(strategies, dict):
            for name, found in strategies.items():
                shown.add_row(
                    str(one["ranks"]), str(one["accumulate"]), name, f"{found['microbatch']:.4f}",
                    f"{found['step']:.4f}", f"{found['milliseconds']:.1f}",
                )  # fmt: skip
    return shown
