"""`make bench NAME=overlap`: tensor-parallel layers over a link and products of known length.

A collective takes what gloo needs and then sleeps, one after the other in a thread, as on a link
that needs no processor (a copy engine); a product sleeps, too. So what a layer takes is compared
with what it could take at best: the first chunk's collective, and then whatever takes longer.
"""

import queue
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click
import torch
import torch.distributed as dist
from rich.table import Table
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

from counterpoise.sched.runtime import OverlappedColwiseParallel, OverlappedRowwiseParallel
from counterpoise.sched.runtime.tensor import chunks as chunked
from counterpoise.tools.console.reporting import emit, make_table, progress_console

from .. import rounded_spread
from .rank_processes import RankProcesses

WIDTH = 16
PARTS = ("gather", "scatter", "backward")


class Link:
    """Collectives one after the other, each of which takes `seconds` longer than gloo does."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._waiting: queue.SimpleQueue[tuple[Callable[[], Any], threading.Event]]
        self._waiting = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def issue(self, collective: Callable[..., Any], *given: Any, **named: Any) -> "Sent":
        """Begin a collective."""
        named.pop("async_op")
        done = threading.Event()
        self._waiting.put((partial(collective, *given, **named), done))
        return Sent(done)

    def _run(self) -> None:
        while True:
            collective, done = self._waiting.get()
            begun = time.perf_counter()
            collective()
            time.sleep(max(0.0, begun + self.seconds - time.perf_counter()))
            done.set()


class Sent:
    """A collective that is under way."""

    def __init__(self, done: threading.Event) -> None:
        self._done = done

    def wait(self) -> None:
        """Wait until all is there."""
        self._done.wait()


class SleepingRank:
    """A process of a tensor-parallel group, whose link and products sleep."""

    def __init__(self, rank: int, ranks: int) -> None:
        del rank
        self._mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
        self._link, self._product_s = Link(), 0.0
        for name in ("all_gather_into_tensor", "reduce_scatter_tensor"):
            own = getattr(dist, name)
            setattr(dist, name, partial(self._link.issue, own))
        product = chunked._product

        def slow(rows: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
            time.sleep(self._product_s)
            return product(rows, matrix, bias)

        chunked._product = slow

    def run(self, count: int, link_s: float, product_s: float) -> dict[str, float]:
        """Return the seconds of each part of a step; both are given for whole collectives."""
        ranks = self._mesh.size()
        layers = nn.ModuleDict({"up": nn.Linear(WIDTH, ranks), "down": nn.Linear(ranks, WIDTH)})
        parallelize_module(
            layers,
            self._mesh,
            {"up": OverlappedColwiseParallel(count), "down": OverlappedRowwiseParallel(count)},
        )
        given = torch.randn(1, 2 * count, WIDTH, requires_grad=True)
        self._link.seconds, self._product_s = link_s / count, product_s / count
        dist.barrier()
        times = [time.perf_counter()]
        inner = layers["up"](given)
        times.append(time.perf_counter())
        loss = layers["down"](inner).sum()
        times.append(time.perf_counter())
        loss.backward()
        times.append(time.perf_counter())
        return {
            name: end - begin for name, begin, end in zip(PARTS, times, times[1:], strict=False)
        }


def ideal(count: int, link_s: float, product_s: float) -> float:
    """Return the least that a collective and its product take in so many chunks.

    >>> [round(ideal(n, 0.08, 0.16), 3) for n in (1, 2, 4, 8)]
    [0.24, 0.2, 0.18, 0.17]
    """
    return link_s / count + max(product_s, link_s - link_s / count + product_s / count)


@click.command()
@click.option("--ranks", default=2, show_default=True, help="Processes of the group.")
@click.option("--chunks", default="1,2,4,8", show_default=True, help="Numbers of chunks.")
@click.option("--link-ms", default=80.0, show_default=True, help="Time of a whole collective.")
@click.option("--product-ms", default=160.0, show_default=True, help="Time of a whole product.")
@click.option("--repeats", default=5, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line.")
def command(
    ranks: int, chunks: str, link_ms: float, product_ms: float, repeats: int, as_json: bool
) -> None:
    """Time tensor-parallel layers whose collectives and products sleep, against the ideal.

    Example: make bench NAME=overlap ARGS='--ranks 4 --link-ms 200'
    """
    counts = [int(each) for each in chunks.split(",")]
    sizes = link_ms / 1e3, product_ms / 1e3
    processes = RankProcesses(ranks, SleepingRank, ranks)
    found: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
    try:
        for _ in range(repeats + 1):
            for count in counts:
                found[count].append(processes.call("run", count, *sizes)[0])
                progress_console.print(f"{count} chunks")
    finally:
        processes.close()
    # The first round warms up.
    report = {str(n): _summary(n, rounds[1:], sizes) for n, rounds in found.items()}
    emit({"ranks": ranks, "chunks": report}, as_json, _table(report))


def _summary(
    count: int, rounds: Sequence[dict[str, float]], sizes: tuple[float, float]
) -> dict[str, Any]:
    """Return milliseconds, and ratios to the ideal, each as median, least and most."""
    best = ideal(count, *sizes)
    # A backward is one of each.
    least = {"gather": best, "scatter": best, "backward": 2 * best}
    return {
        name: {
            "ideal_ms": round(1e3 * least[name], 1),
            "ms": round(1e3 * statistics.median(each[name] for each in rounds), 1),
            "over_ideal": rounded_spread([each[name] / least[name] for each in rounds], 3),
        }
        for name in PARTS
    }


def _table(report: dict[str, Any]) -> Table:
    table = make_table(
        "Collectives beside their products", "chunks", "part", "ideal, ms", "ms", "over ideal"
    )
    for count, parts in report.items():
        for name, each in parts.items():
            ratio = "{} ({} to {})".format(*each["over_ideal"])
            table.add_row(count, name, str(each["ideal_ms"]), str(each["ms"]), ratio)
    return table
