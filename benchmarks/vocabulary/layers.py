"""`make bench NAME=vocabulary_layers`: times vocabulary-parallel layers, measures their memory.

One rank's passes of a microbatch, forward and backward without communication, against the same
layer and loss on one device: torch's linear and cross_entropy, that compiled, and a chunked loss.
Rounds are interleaved; ratios are of times in the same round.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click
import torch
from rich.table import Table
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from counterpoise.tools.console.reporting import emit, progress_console

from .. import rounded_spread
from .losses import LossInputs, chunked, cross_entropy, make_inputs, one_shard

Report = dict[str, Any]
Contender = Callable[[], Tensor]
BASELINE = "cross_entropy"
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True)
class LayerCase:
    """One size. `ranks`: those that the vocabulary is divided over."""

    words: int
    hidden: int
    tokens: int
    ranks: int
    dtype: torch.dtype
    device: torch.device


@click.command()
@click.option("--words", default="32768,131072", help="Sizes of the vocabulary, with commas.")
@click.option("--hidden", default=4096, help="Size of the hidden states.")
@click.option("--tokens", default=4096, help="Tokens of a microbatch.")
@click.option("--ranks", default=4, help="Pipeline ranks that share the vocabulary.")
@click.option("--dtype", default="bf16", type=click.Choice(list(_DTYPES)))
@click.option("--device", default="cuda" if torch.cuda.is_available() else "cpu")
@click.option("--rounds", default=10, help="Interleaved rounds.")
@click.option("--compile/--no-compile", "compiled", default=False, help="torch.compile it too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line.")
def command(
    words: str,
    hidden: int,
    tokens: int,
    ranks: int,
    dtype: str,
    device: str,
    rounds: int,
    compiled: bool,
    as_json: bool,
) -> None:
    """Time and weigh one rank's vocabulary passes against losses on one device.

    Example: make bench NAME=vocabulary_layers ARGS='--words 8192 --hidden 256 --tokens 512'
    """
    report: Report = {"device": _device_name(device), "dtype": dtype, "ranks": ranks, "words": {}}
    for size in map(int, words.split(",")):
        progress_console.print(f"{size} words")
        case = LayerCase(size, hidden, tokens, ranks, _DTYPES[dtype], torch.device(device))
        report["words"][str(size)] = measure(case, rounds, compiled)
    emit(report, as_json, _table(report))


def measure(case: LayerCase, rounds: int, compiled: bool = False) -> Report:
    """Return time ratios, peak bytes and the largest error of each contender.

    Time and bytes of a shard are of one rank; `work_ratio` is the time of all ranks together over
    the baseline's, 1 for a division that costs nothing.
    """
    inputs = make_inputs(case.words, case.hidden, case.tokens, case.device, case.dtype)
    contenders = _contenders(inputs, case.ranks, compiled)
    for run in contenders.values():
        run()  # libraries load, kernels are chosen, graphs are compiled
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            seconds[name].append(_seconds(run, case.device))
    report: Report = {"logits_bytes": case.tokens * case.words * case.dtype.itemsize}
    for name, run in contenders.items():
        ratios = [a / b for a, b in zip(seconds[name], seconds[BASELINE], strict=True)]
        report[name] = {
            "ms": round(1e3 * statistics.median(seconds[name]), 3),
            "time_ratio": rounded_spread(ratios, 3),
            "peak_bytes": _peak_bytes(run, case.device),
        }
        if name.startswith("shard"):
            report[name]["work_ratio"] = rounded_spread([ratio * case.ranks for ratio in ratios], 3)
    return report


def _contenders(inputs: LossInputs, ranks: int, compiled: bool) -> dict[str, Contender]:
    found: dict[str, Contender] = {
        BASELINE: lambda: cross_entropy(inputs),
        "chunked": lambda: chunked(inputs),
    }
    if compiled:
        whole = torch.compile(cross_entropy)
        found["compiled"] = lambda: whole(inputs)
    for algorithm in ("alg1", "alg2"):
        for keep in ("logits", "nothing"):
            found[f"shard {algorithm} {keep}"] = one_shard(inputs, algorithm, keep, ranks)
    return found


def _seconds(run: Contender, device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    run()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peak_bytes(run: Contender, device: torch.device) -> int:
    """Return the most bytes that a run holds above what was there before, results included."""
    if device.type == "cuda":
        run()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        run()
    events = record.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def _table(report: Report) -> Table:
    columns = ("words", "contender", "ms", "time ratio", "all ranks' work", "peak MiB")
    title = f"{report['device']}, {report['dtype']}, one of {report['ranks']} ranks"
    table = Table(*columns, title=title)
    for words, found in report["words"].items():
        for name, cell in found.items():
            if isinstance(cell, dict):
                ratio, work = (_text(cell.get(key)) for key in ("time_ratio", "work_ratio"))
                peak = f"{cell['peak_bytes'] / 2**20:.1f}"
                table.add_row(words, name, f"{cell['ms']:.1f}", ratio, work, peak)
    return table


def _text(spread: list[float] | None) -> str:
    return "" if spread is None else "{:.2f} ({:.2f}-{:.2f})".format(*spread)
