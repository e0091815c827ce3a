"""`make bench NAME=threads`: planning beside other threads.

How much more four threads plan than one, by size of window; and how long a thread that gives up
Python's lock all the time, as torch's calls do, waits for it while a large epoch is planned.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np

from counterpoise.balancer import Balance, PlanConfig, Window, make_planner
from counterpoise.balancer.planning.kernels.arrays import Int64
from counterpoise.tools.console.reporting import emit

BUDGETS = {"tiles": 60, "tokens": 8000}
# Name, samples of a window, and what is asked for.
WINDOWS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("free", 4096, {}),
    ("budgets", 4096, {"budgets": BUDGETS}),
    ("waits once a step", 4096, {"waits": "step"}),
    ("padded", 2048, {"work": "padded"}),
    ("budgets", 256, {"budgets": BUDGETS}),
)
THREADS, LEAST_S = 4, 0.6


def costs_of(samples: int, seed: int = 0) -> Int64:
    """Return tiles and tokens (samples, 2)."""
    draws = np.random.default_rng(seed)
    tokens = draws.lognormal(6, 0.8, samples).clip(1, 4000).astype(np.int64)
    return np.stack([draws.integers(0, 9, samples), tokens], axis=1)


def planner_of(samples: int, **given: Any) -> Any:
    """Return a planner for steps of so many samples on 8 ranks."""
    plan = PlanConfig.from_balance(
        Balance(accumulate="auto", **given),
        ranks=8,
        resources=("tiles", "tokens"),
        samples_per_step=samples,
        accumulate_from=max(1, samples // 64),
    )
    return make_planner(plan)


def seconds(action: Callable[[], object]) -> float:
    """Return how long something takes."""
    since = time.perf_counter()
    action()
    return time.perf_counter() - since


def throughput(samples: int, given: dict[str, Any], rounds: int) -> float:
    """Return what four threads plan over what one plans: the best of some rounds."""
    planner, costs = planner_of(samples, **given), [costs_of(samples, n) for n in range(THREADS)]

    def plan(number: int, times: int) -> None:
        for _ in range(times):
            planner.plan(Window(0, 0, 0, costs[number], True))

    def plan_all(times: int) -> None:
        threads = [threading.Thread(target=plan, args=(n, times)) for n in range(THREADS)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    times = max(1, int(LEAST_S / seconds(lambda: plan(0, 1)) / THREADS))
    found = [
        seconds(lambda: plan(0, THREADS * times)) / seconds(lambda: plan_all(times))
        for _ in range(rounds)
    ]
    return round(max(found), 2)


def longest_waits(samples: int, mode: str) -> list[float]:
    """Return the longest waits for Python's lock while an epoch is planned, milliseconds."""
    costs, planner = costs_of(samples), planner_of(4096, mode=mode, budgets=BUDGETS)
    done = threading.Event()

    def plan() -> None:
        at = step = 0
        while at < samples:
            end = min(at + planner.window_samples, samples)
            found = planner.plan(Window(0, step, at, costs[at:end], end == samples))
            at, step = at + found.consumed, step + len(found.batches)
        done.set()

    waits, last = list[float](), time.perf_counter()
    threading.Thread(target=plan).start()
    while not done.is_set():
        time.sleep(0)
        now = time.perf_counter()
        waits.append(1e3 * (now - last))
        last = now
    return [round(each, 1) for each in sorted(waits)[-3:]]


@click.command("threads", epilog="Example: make bench NAME=threads ARGS='--json'")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--samples", type=click.IntRange(1), default=1_200_000, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(rounds: int, samples: int, as_json: bool) -> None:
    """Plan in four threads at once, and beside a thread that wants Python's lock."""
    rows: list[dict[str, Any]] = [
        {"window": name, "samples": size, "four_over_one": throughput(size, given, rounds)}
        for name, size, given in WINDOWS
    ]
    rows += [
        {"mode": mode, "samples": samples, "longest_waits_ms": longest_waits(samples, mode)}
        for mode in ("window", "epoch")
        for _ in range(rounds)
    ]
    for row in rows:
        click.echo(str(row), err=True)
    emit({"rows": rows}, as_json)
