"""`make bench NAME=rollouts`: rollouts in memory dealt to ranks and microbatches, ours and others'.

Work is by verl's weights, 24,576 n + n^2 of a rollout of n tokens. Ours and verl's functions take
turns on the same numbers; CPU time is of one process, and verl's gets a list of work where ours
computes it. OpenRLHF's and TRL's rules are restated (`baselines/rollout_rules.py`) and not timed.
What ranks wait for with microbatches is the sum, over the first, the second ..., of the most that
a rank has in it.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, TypeVar

import click

import counterpoise as cp
from counterpoise.balancer.planning.kernels.arrays import Int64
from counterpoise.balancer.planning.problem.options import Counts
from counterpoise.tools.console.reporting import emit, progress_console, spread

from ..baselines.rollout_rules import (
    Parts,
    count_first_fit,
    cut_as_trl,
    deal_as_openrlhf,
    deal_as_trl,
)
from ..baselines.verl_functions import PeerError, VerlProcess
from .rollout_cases import (
    LENGTHS,
    WEIGHTS,
    RolloutCell,
    default_cells,
    draw_lengths,
    parse_cell,
    weigh,
)
from .rollout_report import as_tables, judge

T = TypeVar("T")
Rows = list[Parts]  # microbatches of ranks
# verl makes a Python object for each rollout and rank where counts are free: 12 s for so many
MOST_SETS = 65_536 * 64
SECONDS = 3.0  # of a cell's rounds, after which no further begins
COUNTS: tuple[Counts, ...] = ("equal", "free")
Report = dict[str, Any]
Figures = dict[str, Any]


@click.command("rollouts")
@click.option(
    "--verl", metavar="PYTHON", help="An interpreter that has verl; without it, verl has no row.",
)  # fmt: skip
@click.option(
    "--cell", "names", multiple=True, metavar="ROLLOUTSxRANKS[xBUDGET]",
    help="Measure this cell only; repeat.",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Leave out the large cells: two minutes.")
@click.option("--rounds", default=5, show_default=True, help="Calls of a cell, at most.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(
    verl: str | None, names: tuple[str, ...], quick: bool, rounds: int, seed: int, as_json: bool
) -> None:
    """Deal rollouts in memory to ranks and microbatches; compare with verl, OpenRLHF and TRL.

    Example: make bench NAME=rollouts ARGS="--verl /path/to/verl/bin/python --quick --json"
    """
    cells = [parse_cell(name) for name in names] or default_cells(quick)
    with contextlib.ExitStack() as stack:
        peer = None if verl is None else stack.enter_context(VerlProcess(verl))
        report = measure_cells(cells, peer, rounds, seed)
    emit(report, as_json, *as_tables(report))


def measure_cells(
    cells: Sequence[RolloutCell], verl: VerlProcess | None, rounds: int, seed: int
) -> Report:
    """Return rows of the cells with budgets and without, for both kinds of lengths, and the bars.

    Without verl, its figures are an error that says so.
    """
    report: Report = {"verl": verl and verl.version, "deals": [], "microbatches": []}
    for cell in cells:
        progress_console.print(str(cell))
        for name in LENGTHS:
            lengths = draw_lengths(name, cell, seed)
            if cell.budget is None:
                rows = [measure_deal(lengths, cell, counts, verl, rounds) for counts in COUNTS]
            else:
                rows = [measure_microbatches(lengths, cell, cell.budget, verl, rounds, seed)]
            kind = "deals" if cell.budget is None else "microbatches"
            report[kind] += [{"lengths": name, "cell": str(cell)} | row for row in rows]
    return report | {"bars": judge(report)}


# --- without budgets


def measure_deal(
    lengths: Int64, cell: RolloutCell, counts: Counts, verl: VerlProcess | None, rounds: int
) -> Report:
    """Return figures of each contender that deals a cell's rollouts to ranks."""
    work = weigh(lengths)
    as_list = work.tolist()
    bounds: list[float] = []

    def ours() -> tuple[Parts, float]:
        begin = time.process_time()
        partition = cp.partition(lengths, cell.ranks, counts=counts, work=WEIGHTS)
        seconds = time.process_time() - begin
        bounds[:] = [partition.bound]
        return partition.ranks, seconds

    def theirs() -> tuple[Parts, float]:
        sets = cell.items * cell.ranks
        if counts == "free" and sets > MOST_SETS:
            raise PeerError(f"not called: it would make {sets:,} Python objects")
        return need(verl).partition(as_list, cell.ranks, counts == "equal")

    answers, times = take_turns({"ours": ours, "verl": theirs}, rounds)
    if counts == "equal":
        answers |= {
            "openrlhf": deal_as_openrlhf(lengths, cell.ranks),
            "trl": deal_as_trl(cell.items, cell.ranks),
        }
    figures: dict[str, Figures] = {
        name: {"error": answer} if isinstance(answer, str) else figure_deal(answer, work, bounds)
        for name, answer in answers.items()
    }
    return {"counts": counts, **add_times(figures, times)}


def figure_deal(parts: Parts, work: Int64, bounds: Sequence[float]) -> Figures:
    """Return how even ranks are, over the mean and over a bound, and what is in none of them."""
    loads = [int(work[part].sum()) for part in parts]
    sizes = [len(part) for part in parts]
    return {
        "max_over_mean": max(loads) * len(parts) / int(work.sum()),
        "max_over_bound": max(loads) / max(bounds) if bounds else None,
        "counts": [min(sizes), max(sizes)],
        **count_coverage(chain.from_iterable(parts), len(work)),
    }


# --- within budgets


def measure_microbatches(
    lengths: Int64, cell: RolloutCell, budget: int, verl: VerlProcess | None, rounds: int, seed: int
) -> Report:
    """Return figures of each contender that deals rollouts to ranks and to their microbatches."""
    work = weigh(lengths)
    as_list = work.tolist()
    alone: list[int] = []

    def ours(counts: Counts) -> tuple[Rows, float]:
        begin = time.process_time()
        partition = cp.partition(lengths, cell.ranks, counts=counts, budgets=budget, work=WEIGHTS)
        return partition.microbatches, time.process_time() - begin

    def theirs() -> tuple[Rows, float]:
        parts, dealt_s = need(verl).partition(as_list, cell.ranks, equal=True)
        cut, alone[:], cut_s = need(verl).rearrange([lengths[p].tolist() for p in parts], budget)
        rows = [pick_items(part, row) for part, row in zip(parts, cut, strict=True)]
        return rows, dealt_s + cut_s

    def openrlhf() -> tuple[Rows, float]:
        # its buffer takes as many of each rank as fill a batch
        parts = [p[: cell.items // cell.ranks] for p in deal_as_openrlhf(lengths, cell.ranks)]
        number = max(count_first_fit(lengths[part], budget) for part in parts)
        cut = [need(verl).partition(lengths[p].tolist(), number, equal=False)[0] for p in parts]
        return [pick_items(part, row) for part, row in zip(parts, cut, strict=True)], 0.0

    calls = {
        "ours, equal": lambda: ours("equal"), "ours, free": lambda: ours("free"), "verl": theirs,
    }  # fmt: skip
    answers, times = take_turns(calls, rounds)
    answers |= take_turns({"openrlhf": openrlhf}, rounds=1)[0]
    if not isinstance(answers["ours, equal"], str):
        number = len(answers["ours, equal"][0])
        dealt = deal_as_trl(cell.items, cell.ranks)
        answers["trl"] = [cut_as_trl(part, number, seed + r) for r, part in enumerate(dealt)]
    figures: dict[str, Figures] = {
        name: {"error": rows} if isinstance(rows, str) else figure_rows(rows, lengths, budget)
        for name, rows in answers.items()
    }
    return {"verl_alone": alone, **add_times(figures, times)}


def figure_rows(rows: Rows, lengths: Int64, budget: int) -> Figures:
    """Return how long ranks wait with these microbatches, and what is over the budget."""
    work = weigh(lengths)
    numbers = [len(row) for row in rows]
    tokens = [int(lengths[part].sum()) for row in rows for part in row]
    waited = sum(
        max(int(work[part].sum()) for part in side_by_side)
        for side_by_side in zip_longest(*rows, fillvalue=[])
    )
    return {
        "microbatches": [min(numbers), max(numbers)],
        "largest": max(tokens),
        "over_budget": sum(most > budget for most in tokens),
        "waited_over_mean": waited * len(rows) / int(work.sum()),
        **count_coverage(chain.from_iterable(chain.from_iterable(rows)), len(lengths)),
    }


# --- both


def need(verl: VerlProcess | None) -> VerlProcess:
    """Return verl's process, or raise PeerError that says how to get one."""
    if verl is None:
        raise PeerError("not called: give --verl PYTHON")
    return verl


def take_turns(
    calls: Mapping[str, Callable[[], tuple[T, float]]], rounds: int
) -> tuple[dict[str, T | str], dict[str, list[float]]]:
    """Call each in turn; return the answers or errors, and CPU seconds of each round."""
    answers: dict[str, T | str] = {}
    times: dict[str, list[float]] = {name: [] for name in calls}
    begin = time.perf_counter()
    for _ in range(rounds):
        for name, call in calls.items():
            if isinstance(answers.get(name), str):
                continue
            try:
                answers[name], seconds = call()
                times[name].append(seconds)
            except PeerError as error:
                answers[name] = str(error)
            except ValueError as error:
                answers[name] = f"ValueError: {error}"
        if time.perf_counter() - begin > SECONDS:
            break
    return answers, times


def add_times(figures: dict[str, Figures], times: Mapping[str, list[float]]) -> Report:
    """Return the figures with CPU milliseconds, and ours over verl's, round by round."""
    for name, seconds in times.items():
        if seconds:
            figures[name]["cpu_ms"] = min(seconds) * 1000
            if name != "verl" and times["verl"]:
                pairs = zip(seconds, times["verl"], strict=False)
                figures[name]["cpu_over_verl"] = spread([own / other for own, other in pairs])
    return {"contenders": figures}


def pick_items(items: Sequence[int], parts: Parts) -> Parts:
    """Return lists of items, from lists of their positions."""
    return [[items[position] for position in part] for part in parts]


def count_coverage(items: Any, whole: int) -> Figures:
    """Return how many of `whole` items are missing, and how many are there once more."""
    listed = list(items)
    distinct = len(set(listed))
    return {"missing": whole - distinct, "twice": len(listed) - distinct}
