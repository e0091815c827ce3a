"""`make bench NAME=mixture`: CPU time of making a mixture's order, a sample."""

import time

import click
import numpy as np
from rich.table import Table

from counterpoise.balancer.planning.mixing.recipe import Recipe
from counterpoise.tools.console.reporting import emit


@click.command("mixture", epilog="Example: make bench NAME=mixture ARGS='--json'")
@click.option("--samples", default=200_000, show_default=True, help="Samples of an epoch.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(samples: int, as_json: bool) -> None:
    """Measure the first order of a mixture, and a later one, by samples and by a cost."""
    report = {
        f"{count} sources by {by}": _measured(count, by == "cost", samples)
        for count in (10, 100)
        for by in ("samples", "cost")
    }
    shown = Table("mixture", "first epoch, us a sample", "later, us a sample")
    for name, (first, later) in report.items():
        shown.add_row(name, f"{first:.2f}", f"{later:.2f}")
    emit(report, as_json, shown)


def _measured(count: int, by_cost: bool, samples: int) -> list[float]:
    rng = np.random.default_rng(count)
    names = tuple(map(str, range(count)))
    costs = tuple(1 + rng.integers(0, 500, 5000) for _ in names) if by_cost else None
    schedule = ((0, rng.random(count) + 0.01),)
    recipe = Recipe(names, (5000,) * count, schedule, samples, names, costs)
    taken = []
    for epoch in range(2):
        begin = time.process_time()
        recipe.order(0, epoch)
        taken.append((time.process_time() - begin) / samples * 1e6)
    return taken
