"""`make bench NAME=shapes`: epochs of one shape a microbatch, ours and two published samplers'.

Images have the 40 resolutions of SDXL (Podell et al. 2023, appendix I), drawn by aspect ratios with
peaks at those of cameras and screens. Clips have 10 of these at a quarter of the side, and 1, 17,
33 or 65 frames: there a batch of one shape may take 65 times as long as another. Work is latent
pixels, 1 for 16 x 16. Ranks wait for each other after every microbatch; the bound of a step is the
mean of its ranks' work, which no order of other microbatches is below.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import click
import numpy as np
from rich.table import Table

from counterpoise.balancer import Balance, PlanConfig, Shapes
from counterpoise.balancer.planning.forecast import plan_windows
from counterpoise.balancer.planning.kernels.arrays import Int64
from counterpoise.balancer.planning.problem.options import Mode
from counterpoise.balancer.planning.problem.shuffle import permutation
from counterpoise.tools.console.reporting import emit, make_table

from ..baselines.shape_samplers import Steps, automodel_sequential, diffusers_shuffled

HALF = {512: (2048, 1984, 1920, 1856), 576: (1792, 1728, 1664), 640: (1600, 1536)} | {
    704: (1472, 1408, 1344), 768: (1344, 1280), 832: (1216, 1152), 896: (1152, 1088),
    960: (1088, 1024),
}  # fmt: skip
# Heights and widths; of those on end, 704 x 1344 alone has no counterpart that lies.
ON_END = [(side, other) for side, others in HALF.items() for other in others]
RESOLUTIONS = [*ON_END, (1024, 1024), *((b, a) for a, b in ON_END if (a, b) != (704, 1344))]
# Width over height, and how often: square, 4:3, 3:2, 16:9, the same on end, and panoramas.
RATIOS = {1: 20, 4 / 3: 20, 3 / 2: 20, 16 / 9: 12, 3 / 4: 12, 2 / 3: 10, 9 / 16: 5, 2.5: 1}
FRAMES = (1, 17, 33, 65)
SPREAD = 0.12  # of the logarithm of an aspect ratio, about each peak


def draw_shapes(samples: int, clips: bool, seed: int) -> tuple[Int64, Int64]:
    """Return the key and the work (n,) of samples."""
    draw = np.random.default_rng(seed)
    shares = np.array([*RATIOS.values()], dtype=np.float64)
    peaks = draw.choice(np.log([*RATIOS]), samples, p=shares / shares.sum())
    sizes = np.array(RESOLUTIONS[::4] if clips else RESOLUTIONS)
    known = np.log(sizes[:, 1] / sizes[:, 0])
    ratios = peaks + draw.normal(0, SPREAD, samples)
    keys = np.abs(known[None] - ratios[:, None]).argmin(axis=1)
    work = sizes.prod(axis=1)[keys] // 256
    if clips:
        frames = draw.choice(len(FRAMES), samples, p=(0.4, 0.3, 0.2, 0.1))
        work, keys = work // 16 * np.array(FRAMES)[frames], keys * len(FRAMES) + frames
    return keys, work


def plan_ours(
    mode: Mode, is_fixed: bool, keys: Int64, work: Int64, ranks: int, size: int, seed: int
) -> Steps:
    """Return the steps of our plan: batches of `size`, or of as much work as these on average."""
    rules: dict[str, Any] = {"mode": mode, "seed": seed, "shapes": Shapes(bucket_by="shape")}
    budget = max(int(work.max()), int(work.mean() * size))
    rules |= {"grouping": "fixed"} if is_fixed else {"budgets": {"pixels": budget}}
    config = PlanConfig.from_balance(
        Balance(**rules), ranks=ranks, resources=("pixels", "shape"),
        batch_size=size if is_fixed else None, samples_per_step=ranks * size,
    )  # fmt: skip
    order = permutation(len(keys), seed, 0)
    numbers, steps = order.tolist(), Steps()
    for batches in plan_windows(config, np.stack([work, keys], axis=1)[order]):
        for batch in batches:
            steps.append([[numbers[k] for k in rank[0].ordinals] for rank in batch.ranks])
    return steps


Planner = Callable[[Int64, Int64, int, int, int], Steps]
PLANNERS: Mapping[str, Planner] = {
    "Automodel's rule": lambda keys, _, *more: automodel_sequential(keys, *more),
    "diffusers' rule": lambda keys, _, *more: diffusers_shuffled(keys, *more),
    "ours, fixed, window": partial(plan_ours, "window", True),
    "ours, fixed, epoch": partial(plan_ours, "epoch", True),
    "ours, budget, window": partial(plan_ours, "window", False),
    "ours, budget, epoch": partial(plan_ours, "epoch", False),
}


def measure(plan: Planner, keys: Int64, work: Int64, ranks: int, size: int, seed: int) -> Any:
    """Return what a plan's epoch is."""
    begin = time.process_time()
    steps = plan(keys, work, ranks, size, seed)
    seconds = time.process_time() - begin
    batches = [batch for step in steps for batch in step]
    times = np.bincount(np.concatenate([np.array(batch) for batch in batches]), minlength=len(keys))
    loads = np.array([[int(work[batch].sum()) for batch in step] for step in steps])
    top, mean = loads.max(axis=1), loads.mean(axis=1)
    return {
        "one_shape": sum(len({*keys[batch].tolist()}) == 1 for batch in batches) / len(batches),
        "dropped": int((times == 0).sum()),
        "repeated": int((times - 1).clip(0).sum()),
        "steps": len(steps),
        "work_over_bound": float(top.sum() / mean.sum()),
        "steps_over_1.05": int((top > 1.05 * mean).sum()),
        "time_of_epoch": float(top.sum() * ranks / work.sum()),
        "full": sum(len(batch) == size for batch in batches) / len(batches),
        "shapes_of_step": float(np.mean([
            len({int(keys[batch[0]]) for batch in step}) for step in steps
        ])),
        "cpu_s": round(seconds, 2),
    }  # fmt: skip


@click.command("shapes")
@click.option("--samples", default=100_000, show_default=True)
@click.option("--ranks", default=64, show_default=True)
@click.option("--batch-size", "size", default=8, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(samples: int, ranks: int, size: int, seed: int, as_json: bool) -> None:
    """Plan epochs of images and clips of 40 shapes, one shape a microbatch.

    Example: make bench NAME=shapes ARGS="--ranks 64 --json"
    """
    report: dict[str, Any] = {"samples": samples, "ranks": ranks, "batch_size": size, "sets": {}}
    for name in ("images", "clips"):
        keys, work = draw_shapes(samples, name == "clips", seed)
        report["sets"][name] = {
            planner: measure(plan, keys, work, ranks, size, seed)
            for planner, plan in PLANNERS.items()
        }
    emit(report, as_json, *(_as_table(name, rows) for name, rows in report["sets"].items()))


def _as_table(name: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    table = make_table(
        name, "plan", "one shape", "dropped", "repeated", "steps", "work over bound",
        "steps above 1.05", "time of an epoch", "full batches", "shapes a step", "CPU s",
    )  # fmt: skip
    for planner, row in rows.items():
        table.add_row(
            planner, f"{row['one_shape']:.0%}", f"{row['dropped']:,}", f"{row['repeated']:,}",
            f"{row['steps']:,}", f"{row['work_over_bound']:.3f}", f"{row['steps_over_1.05']:,}",
            f"{row['time_of_epoch']:.3f}", f"{row['full']:.1%}", f"{row['shapes_of_step']:.1f}",
            f"{row['cpu_s']:.1f}",
        )  # fmt: skip
    return table
