"""The pipelines of `bench images`: from shards with images to packed batches, each by its name."""

import contextlib
import io
import os
import tarfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import RawValue
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from ...workers.sources.file_patterns import find_shards
from .energon import energon_loader
from .processes import cpu_s_below, part_of

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


@dataclass(frozen=True, slots=True)
class ImagePass:
    """One pass: samples per second, CPU microseconds a sample, and a hash of all pictures.

    workers_us: of all processes but trainer and balancer.
    """

    rate: float
    trainer_us: float
    balancer_us: float
    workers_us: float
    pictures: str = ""

    @property
    def all_us(self) -> float:
        """CPU microseconds a sample of all processes."""
        return self.trainer_us + self.balancer_us + self.workers_us


def copy_samples(pattern: str, count: int, shards: int, folder: str) -> None:
    """Copy `count` samples, spread evenly over the shards of a pattern, into new shards.

    Raises ValueError if there are fewer samples.
    """
    samples: list[dict[str, bytes]] = []
    for path in find_shards(pattern):
        samples.extend(_samples_of(path))
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


def _samples_of(path: Any) -> Iterator[dict[str, bytes]]:
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


def serve(pipe: "Pipe[Any, Any]", name: str, work: ImageWork, resize: str) -> None:
    """Run a pass each time something arrives, and send its ImagePass."""
    import torch

    torch.set_num_threads(1)
    loader: Any = None
    first = True
    try:
        loader = LOADERS[name](work, resize)
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
    own, balancer, others = (1e6 * (b - a) / samples for a, b in zip(before, after, strict=True))
    pictures = f"{zlib.crc32(repr(sorted(sums)).encode()):08x} of {len(sums)}" if hashed else ""
    return ImagePass(samples / seconds, own, balancer, others, pictures)


def _sums_of(batch: Mapping[str, Any]) -> Iterator[int]:
    """Yield a checksum of each picture of a packed batch."""
    ends = [0, *batch["tiles_per_image"].cumsum(0).tolist()]
    pixels = batch["pixel_values"].numpy()
    for start, end in pairwise(ends):
        yield zlib.crc32(pixels[start:end].tobytes())


def _cpu_s() -> tuple[float, float, float]:
    """Return the CPU seconds so far of this process, of the balancer, and of all others below."""
    spent = {"balancer": 0.0, "workers": 0.0}
    for pid, seconds in cpu_s_below(os.getpid()).items():
        with contextlib.suppress(FileNotFoundError):
            spent[part_of(pid)] += seconds
    times = os.times()  # of children that have ended
    others = spent["workers"] + times.children_user + times.children_system
    return time.process_time(), spent["balancer"], others


def _dataset(work: ImageWork, resize: str) -> Any:
    from ...workers import TarDataset, VisionLanguage

    return TarDataset(work.shards, VisionLanguage(tile_size=work.tile_size, resize=resize))


def _options(work: ImageWork) -> dict[str, Any]:
    from ...loader import collate_packed

    return {
        "batch_size": work.batch_size,
        "num_workers": work.workers,
        "collate_fn": collate_packed,
        "persistent_workers": True,
        "prefetch_factor": PREFETCH,
        "multiprocessing_context": "fork",
    }


def _balanced(work: ImageWork, resize: str) -> Any:
    from ...loader import Balance, DataLoader

    options = {**_options(work), "collate_fn": None}
    balance = Balance(grouping="fixed", layout="packed")
    return DataLoader(_dataset(work, resize), shuffle=True, balance=balance, **options)


def _threads(work: ImageWork, resize: str) -> Any:
    """Return a balanced loader of one worker, with a thread for each worker of the others."""
    from ...loader import Balance, DataLoader

    options = {**_options(work), "collate_fn": None, "num_workers": 1}
    balance, threads = Balance(grouping="fixed", layout="packed"), work.workers
    return DataLoader(
        _dataset(work, resize), shuffle=True, balance=balance, decode_threads=threads, **options
    )


def _plain(work: ImageWork, resize: str) -> Any:
    from ...loader import DataLoader

    return DataLoader(_dataset(work, resize), **_options(work))


def _torchs(work: ImageWork, resize: str) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(_dataset(work, resize), **_options(work))


def _webdataset(work: ImageWork, resize: str) -> Any:
    import webdataset
    from torch.utils.data import DataLoader

    dataset = webdataset.WebDataset(work.shards, shardshuffle=False)
    return DataLoader(dataset.map(_decoding(work, resize)), **_options(work))


def _energon(work: ImageWork, resize: str) -> Any:
    from ...loader import collate_packed

    decode = _decoding(work, resize)
    return energon_loader(
        work.folder, decode, collate_packed, work.batch_size, work.workers, PREFETCH
    )


def _decoding(work: ImageWork, resize: str) -> Callable[[Mapping[str, Any]], Any]:
    """Return what makes a sample of the bytes of its members, named as webdataset names them."""
    from ...workers import VisionLanguage
    from ...workers.tar.members import decode_member

    transform = VisionLanguage(tile_size=work.tile_size, resize=resize)

    def decode(raw: Mapping[str, Any]) -> Any:
        members = {n: decode_member(n, data) for n, data in raw.items() if not n.startswith("__")}
        return transform({"__key__": raw["__key__"], **members})

    return decode


class _Samples:
    """Samples in memory, of which the pictures are decoded and resized, and nothing else.

    They are returned while `are_wanted`, as for a hash: whoever sends them to another process does
    more than that.
    """

    def __init__(self, work: ImageWork, resize: str) -> None:
        from ...workers.images.resize import resizer

        self._resizer, self._size = resizer(resize), work.tile_size
        self._samples = [each for path in work.shards for each in _samples_of(path)]
        self.are_wanted = RawValue("b", True)  # also of the processes that are forked

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> list[Any]:
        import numpy as np

        from ...workers.images.decode import open_image
        from ...workers.vision_language.tiles import cut, grid, tile_count
        from ...workers.vision_language.transform import image_members

        size, sample, found = self._size, self._samples[index], list[Any]()
        for name in image_members(sample):
            opened = open_image(sample[name])
            shape = grid(*opened.size, size)
            found.append(np.empty((tile_count(shape), 3, size, size), np.uint8))
            image = opened.decode((shape[0] * size, shape[1] * size))
            cut(image, shape, found[-1], self._resizer)
        return found if self.are_wanted.value else [None] * len(found)


class _Alone:
    """Pictures made by as many processes as others have workers, beside each other as theirs."""

    def __init__(self, work: ImageWork, resize: str) -> None:
        from torch.utils.data import DataLoader

        self._samples = _Samples(work, resize)
        options: dict[str, Any] = {**_options(work), "collate_fn": _pictures_of}
        self._loader: Any = DataLoader(self._samples, **options)  # type: ignore[arg-type]

    @property
    def _iterator(self) -> Any:
        return self._loader._iterator

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from self._loader
        self._samples.are_wanted.value = False


def _pictures_of(samples: list[list[Any]]) -> dict[str, Any]:
    """Return what is counted and hashed of a batch."""
    import numpy as np
    import torch

    found = [each for pictures in samples for each in pictures if each is not None]
    return {
        "cu_seq_lens": torch.arange(len(samples) + 1),
        "tiles_per_image": torch.tensor([len(each) for each in found], dtype=torch.int64),
        "pixel_values": torch.from_numpy(np.concatenate(found)) if found else torch.empty(0),
    }


LOADERS: dict[str, Any] = {
    "balanced": _balanced,
    "threads": _threads,
    "plain": _plain,
    "DataLoader": _torchs,
    "webdataset": _webdataset,
    "energon": _energon,
    "alone": _Alone,
}
