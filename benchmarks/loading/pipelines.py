"""Pipelines from shards with images to packed batches, and passes over them that take turns.

Each has a process tree of its own. Some samples of shards are copied first, so that all read the
same ones. A pipeline's first pass is not counted: it starts the workers, and says whether
all that resize with the same library make the same pictures.
"""

import io
import os
import tarfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from torch.utils.data import DataLoader as TorchDataLoader

from counterpoise.loader import Balance, DataLoader, collate_packed
from counterpoise.tools.console.reporting import progress_console
from counterpoise.workers import TarDataset, VisionLanguage
from counterpoise.workers.sources.file_patterns import find_shards

from .processes import MeasuredProcess, cpu_s_below

PREFETCH = 4


@dataclass(frozen=True, slots=True)
class ImageWork:
    """The work of every pipeline: the shards in a folder, in batches, to tiles of a size."""

    folder: str
    batch_size: int
    workers: int
    tile_size: int

    @property
    def shards(self) -> list[str]:
        """The paths of the shards."""
        return sorted(map(str, Path(self.folder).glob("*.tar")))

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that all loaders share."""
        return {
            "batch_size": self.batch_size,
            "num_workers": self.workers,
            "collate_fn": collate_packed,
            "persistent_workers": True,
            "prefetch_factor": PREFETCH,
            # The default of a process that was spawned, as these are, is to spawn.
            "multiprocessing_context": "fork",
        }

    def dataset(self, resize: str) -> Any:
        """Return the samples as our data set has them."""
        return TarDataset(self.shards, VisionLanguage(tile_size=self.tile_size, resize=resize))


@dataclass(frozen=True, slots=True)
class ImagePipeline:
    """A loader to be made of the work and the library that resizes, by its name."""

    make: Callable[[ImageWork, str], Any]
    resize: str


@dataclass(frozen=True, slots=True)
class ImagePass:
    """One pass: samples per second, CPU microseconds a sample, and a hash of all pictures.

    workers_us: of all processes but the trainer.
    """

    rate: float
    trainer_us: float
    workers_us: float
    pictures: str = ""

    @property
    def all_us(self) -> float:
        """CPU microseconds a sample of all processes."""
        return self.trainer_us + self.workers_us


def balanced(work: ImageWork, resize: str, **more: Any) -> Any:
    """Return our loader with a plan of fixed counts."""
    options = {**work.options, "collate_fn": None, **more}
    balance = Balance(grouping="fixed", layout="packed")
    return DataLoader(work.dataset(resize), shuffle=True, balance=balance, **options)


def plain(work: ImageWork, resize: str) -> Any:
    """Return our loader without balancing."""
    return DataLoader(work.dataset(resize), **work.options)


def torchs(work: ImageWork, resize: str) -> Any:
    """Return torch's loader of our data set."""
    return TorchDataLoader(work.dataset(resize), **work.options)


def copy_samples(pattern: str, count: int, shards: int, folder: str) -> None:
    """Copy `count` samples, spread evenly over the shards of a pattern, into new shards.

    Raises ValueError if there are fewer samples.
    """
    samples = [sample for path in find_shards(pattern) for sample in samples_of(path)]
    if len(samples) < count:
        raise ValueError(f"{pattern} has {len(samples)} samples: give --samples {len(samples)}")
    chosen = [samples[number * len(samples) // count] for number in range(count)]
    for shard in range(shards):
        with tarfile.open(Path(folder, f"{shard}.tar"), "w") as tar:
            for number in range(shard, count, shards):
                for extension, data in chosen[number].items():
                    member = tarfile.TarInfo(f"{number:06}.{extension}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))


def samples_of(path: Any) -> Iterator[dict[str, bytes]]:
    """Yield the members of each sample by extension; they stand one after the other."""
    key, found = "", dict[str, bytes]()
    with tarfile.open(path) as tar:
        for member in tar:
            name, _, extension = member.name.partition(".")
            if name != key and found:
                yield found
                found = {}
            key = name
            file = tar.extractfile(member)
            if file is not None:
                found[extension] = file.read()
    if found:
        yield found


def measure(
    work: ImageWork, pipelines: Mapping[str, ImagePipeline], rounds: int
) -> dict[str, list[ImagePass]]:
    """Return the passes of each pipeline; those of a round stand at the same place.

    Raises RuntimeError if pipelines with the same resizer give different pictures.
    """
    passes: dict[str, list[ImagePass]] = {name: [] for name in pipelines}
    systems = {name: MeasuredProcess(_serve, name, each, work) for name, each in pipelines.items()}
    try:
        with Progress(console=progress_console, transient=True) as progress:
            task = progress.add_task("passes", total=len(systems) * (rounds + 1))
            pictures: dict[str, str] = {}
            for name, system in systems.items():
                found, resize = system.ask("run").pictures, pipelines[name].resize
                if pictures.setdefault(resize, found) != found:
                    raise RuntimeError(f"{name} gives other pictures than the others with {resize}")
                progress.advance(task)
            for number in range(rounds):
                # To and fro, so that other load on the machine falls on all.
                for name in systems if number % 2 == 0 else reversed(systems):
                    passes[name].append(systems[name].ask("run"))
                    progress.advance(task)
    finally:
        for system in systems.values():
            system.close()
    return passes


def _serve(pipe: "Pipe[Any, Any]", _name: str, pipeline: ImagePipeline, work: ImageWork) -> None:
    """Run a pass each time something arrives, and send its ImagePass."""
    torch.set_num_threads(1)
    loader: Any = None
    first = True
    try:
        loader = pipeline.make(work, pipeline.resize)
        while pipe.recv():
            pipe.send(run_pass(loader, hashed=first))
            first = False
    finally:
        end(loader)


def end(loader: Any) -> None:
    """End a pipeline's processes."""
    # A torch loader's workers end with their iterator, not with the interpreter.
    iterator: Any = getattr(loader, "_iterator", None)
    if iterator is not None and hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()
    if hasattr(loader, "close"):
        loader.close()


def run_pass(loader: Iterable[Any], hashed: bool) -> ImagePass:
    """Take all batches; `hashed` also hashes their pictures."""
    begun, samples, sums = time.perf_counter(), 0, list[int]()
    batches = iter(loader)
    before = _cpu_s()
    for batch in batches:
        samples += len(batch["cu_seq_lens"]) - 1
        if hashed:
            sums.extend(_sums_of(batch))
    seconds, after = time.perf_counter() - begun, _cpu_s()
    own, others = (1e6 * (b - a) / samples for a, b in zip(before, after, strict=True))
    pictures = f"{zlib.crc32(repr(sorted(sums)).encode()):08x} of {len(sums)}" if hashed else ""
    return ImagePass(samples / seconds, own, others, pictures)


def _sums_of(batch: Mapping[str, Any]) -> Iterator[int]:
    """Yield a checksum of each picture of a packed batch."""
    ends = [0, *batch["tiles_per_image"].cumsum(0).tolist()]
    pixels = batch["pixel_values"].numpy()
    for start, stop in pairwise(ends):
        yield zlib.crc32(pixels[start:stop].tobytes())


def _cpu_s() -> tuple[float, float]:
    """Return the CPU seconds so far of this process, and of all below it."""
    times = os.times()  # of children that have ended
    below = sum(cpu_s_below(os.getpid()).values())
    return time.process_time(), below + times.children_user + times.children_system
