"""`make bench NAME=pinned`: the way from workers to a GPU, by how batches are pinned.

Three loaders with `pin_memory=True` feed the same training step: torch's DataLoader, ours with the
arena (whose batches torch's thread copies into pinned memory), and ours with slots that are pinned
where they lie. Each has a process of its own, and they take turns. Each image has its label in
every pixel, and the device compares them: an image that was overwritten before it was copied is
counted as wrong.
"""

import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Any

import click
from rich.table import Table

from counterpoise.tools.bench.processes import MeasuredProcess
from counterpoise.tools.console.reporting import emit
from counterpoise.tools.console.spread import spread

from .device_memory import memory_figures, memory_table
from .step_models import MODELS, make_model

LOADERS = ("torch", "arena", "pinned")
_CLASSES = 251


@dataclass(frozen=True, slots=True)
class TrainingLoop:
    """The steps of a pass: their number, model and batches; `side` in pixels of square images."""

    model: str
    device: str
    batches: int
    batch_size: int
    side: int
    workers: int


@dataclass(frozen=True, slots=True)
class TrainingPass:
    """Samples per second, ms of a step that the loop waited for its batch, CPU us, wrong images."""

    rate: float
    wait_ms: float
    trainer_us: float
    wrong: int


@click.command("pinned", epilog="Example: make bench NAME=pinned ARGS='--rounds 10 --json'")
@click.option("--model", type=click.Choice(MODELS), multiple=True, help="Default: all.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=10, show_default=True)
@click.option("--batches", type=click.IntRange(2), default=40, show_default=True, help="Of a pass.")
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True)
@click.option("--side", type=click.IntRange(16), default=224, show_default=True)
@click.option("--workers", type=click.IntRange(1), default=4, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(
    model: tuple[str, ...],
    device: str,
    rounds: int,
    batches: int,
    batch_size: int,
    side: int,
    workers: int,
    as_json: bool,
) -> None:
    """Compare how batches are pinned: registration, copies to a GPU, and waiting in a loop.

    On the CPU only the loops run, and nothing is pinned.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here: --device cpu runs the loops without one")
    if side % 16:
        raise ValueError(f"--side is {side}, and the ViT's patches have 16 pixels: give a multiple")
    memory = memory_figures(rounds) if device == "cuda" else None
    models = {
        each: _compare(TrainingLoop(each, device, batches, batch_size, side, workers), rounds)
        for each in model or MODELS
    }
    report = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "rounds": rounds,
        "memory": memory,
        "models": models,
        "load_average": os.getloadavg()[0],
    }
    tables = [] if memory is None else [memory_table(memory)]
    emit(report, as_json, *tables, _table(report))


def _compare(steps: TrainingLoop, rounds: int) -> dict[str, Any]:
    """Return what was found of each loader, and ours over torch's by rounds."""
    found: dict[str, list[TrainingPass]] = {name: [] for name in LOADERS}
    for name, passed in _measure(steps, rounds):
        found[name].append(passed)
    return {
        name: {
            "samples_per_s": statistics.median(each.rate for each in passes),
            "wait_ms": spread([each.wait_ms for each in passes]),
            "trainer_us": statistics.median(each.trainer_us for each in passes),
            "wrong": sum(each.wrong for each in passes),
            "rate_over_torch": spread(
                [a.rate / b.rate for a, b in zip(passes, found["torch"], strict=True)]
            ),
        }
        for name, passes in found.items()
    }


def _measure(steps: TrainingLoop, rounds: int) -> Iterator[tuple[str, TrainingPass]]:
    """Yield passes in turns; the first of each loader warms it up and is dropped."""
    processes = {name: MeasuredProcess(_serve, name, steps) for name in LOADERS}
    try:
        for process in processes.values():
            process.ask("pass")
        for number in range(rounds):
            turn = number % len(LOADERS)
            for name in LOADERS[turn:] + LOADERS[:turn]:
                yield name, processes[name].ask("pass")
    finally:
        for process in processes.values():
            process.close()


def _serve(pipe: "Pipe[Any, Any]", name: str, steps: TrainingLoop) -> None:
    import torch

    torch.set_num_threads(1)
    loader = loader_of(name, steps)
    step = make_model(steps.model, steps.device, steps.side, _CLASSES)
    while pipe.recv():
        pipe.send(one_pass(loader, step, steps.device))


@dataclass(frozen=True, slots=True)
class Images:
    """Images with their label in every pixel; made when asked for, as fast as one is copied."""

    count: int
    side: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        import torch

        label = index % _CLASSES
        return torch.full((3, self.side, self.side), label, dtype=torch.uint8), label


def loader_of(name: str, steps: TrainingLoop) -> Any:
    """Return a loader of LOADERS."""
    from torch.utils.data import DataLoader as TorchLoader

    from counterpoise.loader import DataLoader

    images: Any = Images(steps.batches * steps.batch_size, steps.side)
    named: dict[str, Any] = {
        "batch_size": steps.batch_size,
        "num_workers": steps.workers,
        "persistent_workers": True,
        "pin_memory": True,
        # Nothing is forked beside CUDA.
        "multiprocessing_context": "forkserver" if steps.device == "cuda" else "fork",
    }
    if name == "torch":
        return TorchLoader(images, **named)
    return DataLoader(images, transport="arena" if name == "arena" else "pinned", **named)


def one_pass(loader: Any, step: Any, device: str) -> TrainingPass:
    """Train on all of a loader's batches, and compare the images with their labels."""
    import torch

    is_cuda = device == "cuda"
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    samples, waited, batches = 0, 0.0, iter(loader)
    begun, cpu = time.perf_counter(), time.process_time()
    count = 0
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            break
        waited += time.perf_counter() - asked
        images, labels = (each.to(device, non_blocking=True) for each in batch)
        del batch
        wrong += (images != labels[:, None, None, None]).flatten(1).any(1).sum()
        step(images, labels)
        samples, count = samples + len(labels), count + 1
    if is_cuda:
        torch.cuda.synchronize()
    seconds, own = time.perf_counter() - begun, time.process_time() - cpu
    return TrainingPass(samples / seconds, 1e3 * waited / count, 1e6 * own / samples, int(wrong))


def _table(report: dict[str, Any]) -> Table:
    """Return the loops' figures, one row for each model and loader."""
    made = Table(title=f"training steps on {report['device']}, by how batches are pinned")
    for column in ("model", "loader", "samples/s", "over torch", "range", "waits, ms a batch",
                   "range", "trainer, us a sample", "wrong"):  # fmt: skip
        made.add_column(column, justify="right")
    for model, loaders in report["models"].items():
        for name, found in loaders.items():
            over, wait = found["rate_over_torch"], found["wait_ms"]
            made.add_row(
                model,
                name,
                f"{found['samples_per_s']:.0f}",
                f"{over['median']:.2f}",
                f"{over['low']:.2f} to {over['high']:.2f}",
                f"{wait['median']:.2f}",
                f"{wait['low']:.2f} to {wait['high']:.2f}",
                f"{found['trainer_us']:.0f}",
                str(found["wrong"]),
            )
    return made
