"""`make bench NAME=order`: compares orders of microbatches in a pipeline with DistTrain's."""

import time
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import click
import numpy as np
from rich.table import Table

from counterpoise.balancer.planning.kernels.arrays import Int64
from counterpoise.balancer.planning.ordering.evaluator import PipelineEvaluator
from counterpoise.balancer.planning.ordering.search import disttrain, find_order
from counterpoise.balancer.planning.problem.metrics import TILE_TOKENS
from counterpoise.balancer.planning.problem.shuffle import permutation
from counterpoise.tools.console.reporting import emit

from .costs import read_costs

NANOSECONDS = 1_000_000
EXHAUSTIVE_UP_TO = 8
_SHUFFLES = 100

STRATEGIES: dict[str, Callable[[PipelineEvaluator], Int64]] = {
    "disttrain_alg3": disttrain,
    "two_opt": lambda pipeline: find_order("two_opt", pipeline),
}


@click.command(
    "order",
    epilog="Example: make bench NAME=order ARGS='--stages 4 --microbatches 16 --sigma 1 --json'",
)
@click.option("--stages", default=4, show_default=True, help="Pipeline ranks.")
@click.option("--microbatches", default=16, show_default=True)
@click.option("--sigma", default=1.0, show_default=True, help="Spread of the encoder's time.")
@click.option("--virtual", default=1, show_default=True, help="Chunks a rank (interleaved 1F1B).")
@click.option("--costs", type=click.Path(path_type=Path), help="Draw encoder times from tiles.")
@click.option("--draws", default=20, show_default=True, help="Seeds to average over.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(
    stages: int, microbatches: int, sigma: float, virtual: int, costs: Path | None,
    draws: int, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Compare orders of one rank's microbatches: stage 0 varies, the others take 1, backward 2x."""
    report = compare_orders(stages, microbatches, sigma, virtual, costs, draws, seed)
    emit(report, as_json, _as_table(report))


def compare_orders(
    stages: int, microbatches: int, sigma: float, virtual: int, costs: Path | None,
    draws: int, seed: int,
) -> dict[str, object]:  # fmt: skip
    """Return each strategy's speed-up over random orders, gap to the optimum, and milliseconds."""
    speedups: dict[str, list[float]] = {name: [] for name in ("random", *STRATEGIES)}
    gaps: dict[str, list[float]] = {name: [] for name in speedups}
    taken: dict[str, list[float]] = {name: [] for name in speedups}
    for draw in range(draws):
        pipeline = _pipeline(stages, microbatches, sigma, virtual, costs, seed + draw)
        shuffled = [permutation(microbatches, k, seed + draw) for k in range(_SHUFFLES)]
        mean = float(np.mean([pipeline(order) for order in shuffled]))
        makespans = {"random": mean}
        taken["random"].append(0.0)
        for name, strategy in STRATEGIES.items():
            begin = time.process_time()
            order = strategy(pipeline)
            taken[name].append((time.process_time() - begin) * 1000)
            makespans[name] = pipeline(order)
        optimum = _optimum(pipeline, microbatches)
        for name, makespan in makespans.items():
            speedups[name].append(mean / makespan)
            if optimum:
                gaps[name].append(makespan / optimum - 1)
    strategies = {name: _figures(speedups[name], gaps[name], taken[name]) for name in speedups}
    return {
        "stages": stages, "microbatches": microbatches, "sigma": sigma, "virtual": virtual,
        "draws": draws, "strategies": strategies,
    }  # fmt: skip


def _figures(speedups: list[float], gaps: list[float], taken: list[float]) -> dict[str, object]:
    """Return a strategy's figures from those of each draw; no gap where the optimum is unknown."""
    return {
        "speedup": float(np.mean(speedups)),
        "speedup_range": [min(speedups), max(speedups)],
        "gap_to_optimum": float(np.mean(gaps)) if gaps else None,
        "milliseconds": float(np.mean(taken)),
    }


def _pipeline(
    stages: int, microbatches: int, sigma: float, virtual: int, costs: Path | None, seed: int
) -> PipelineEvaluator:
    """Return a pipeline with a varying stage 0: lognormal of mean 1, or a file's tiles."""
    forward = np.full((stages * virtual, microbatches), NANOSECONDS // virtual, dtype=np.int64)
    if costs is None:
        rng = np.random.default_rng(seed)
        drawn = np.exp(rng.normal(0.0, sigma, microbatches) - sigma * sigma / 2)
    else:
        tiles = read_costs(costs, ("tiles",), 0, seed).column("tiles") * TILE_TOKENS
        drawn = tiles[permutation(len(tiles), seed, 0)[:microbatches]] / max(1.0, tiles.mean())
    forward[0] = np.rint(drawn * NANOSECONDS / virtual).astype(np.int64)
    return PipelineEvaluator.one_forward_one_backward(stages, forward)


def _optimum(pipeline: PipelineEvaluator, microbatches: int) -> int:
    """Return the makespan of the best order; 0 if there are too many to try."""
    if microbatches > EXHAUSTIVE_UP_TO:
        return 0
    orders = np.array(list(permutations(range(microbatches))), dtype=np.int64)
    return min(pipeline(order) for order in orders)


def _as_table(report: dict[str, object]) -> Table:
    title = f"{report['stages']} stages x {report['microbatches']} microbatches"
    shown = Table(title=f"{title}, sigma {report['sigma']}, {report['virtual']} chunks a rank")
    for column in ("strategy", "speedup over random", "gap to optimum", "CPU ms"):
        shown.add_column(column, justify="left" if column == "strategy" else "right")
    strategies = report["strategies"]
    if isinstance(strategies, dict):
        for name, one in strategies.items():
            gap = one["gap_to_optimum"]
            shown.add_row(
                name, f"{one['speedup']:.4f}", "" if gap is None else f"{gap:.4f}",
                f"{one['milliseconds']:.1f}",
            )  # fmt: skip
    return shown
