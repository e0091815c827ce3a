"""Cuts with sound in files, and loaders over them: lhotse's sampler, and ours over its CutSets."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
import torch.distributed as dist
from lhotse import CutSet, Recording, SupervisionSegment
from lhotse.dataset import DynamicBucketingSampler, K2SpeechRecognitionDataset
from lhotse.dataset.input_strategies import AudioSamples
from lhotse.serialization import deserialize_item

import counterpoise as cp
from counterpoise.workers import Probe

RATE = 400  # samples a second: few, since only lengths matter here
MAX_DURATION = 60.0  # seconds of a rank's batch, with padding
MEAN_DURATION = 8.6


def write_cuts(folder: Path, count: int, seed: int) -> Path:
    """Write sounds of 0.5 to 30 seconds and cuts.jsonl, which names them; return its path."""
    rng = np.random.default_rng(seed)
    seconds = rng.lognormal(1.9, 0.75, count).clip(0.5, 30).round(2)
    cuts = []
    for number, duration in enumerate(seconds.tolist()):
        name = f"cut-{number:05}"
        sound = folder / f"{name}.wav"
        soundfile.write(sound, rng.uniform(-0.5, 0.5, round(duration * RATE)), RATE)
        cut = Recording.from_file(sound, recording_id=name).to_cut()
        cut.id = name
        cut.supervisions = [SupervisionSegment(name, name, 0, cut.duration, text="said")]
        cuts.append(cut)
    CutSet.from_cuts(cuts).to_file(folder / "cuts.jsonl")
    return folder / "cuts.jsonl"


def make_speech() -> K2SpeechRecognitionDataset:
    """Return lhotse's data set: a CutSet to a batch of padded sound."""
    return K2SpeechRecognitionDataset(return_cuts=True, input_strategy=AudioSamples())


def collate_cuts(cuts: list[Any]) -> dict[str, Any]:
    """Return the batch that lhotse's data set makes of cuts."""
    return make_speech()[CutSet.from_cuts(cuts)]


def count_frames(cut: Any) -> dict[str, int]:
    """Return the cost of a cut in frames of 10 ms."""
    return {"frames": round(100 * cut.duration)}


class ReadCut:
    """Makes a cut of a line of cuts.jsonl; nothing is decoded for its cost."""

    def __call__(self, raw: dict[str, Any]) -> Any:
        return deserialize_item(raw["json"])

    def probe(self, raw: dict[str, Any]) -> Probe:
        """Return a cut's name and cost."""
        return Probe(raw["__key__"], count_frames(self(raw)))


class CutStream(torch.utils.data.IterableDataset[Any]):
    """The cuts of a lazy CutSet, of which each worker of each rank yields its share."""

    def __init__(self, path: Path) -> None:
        self.cuts = CutSet.from_jsonl_lazy(path)

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        rank, ranks = dist.get_rank(), dist.get_world_size()
        yield from islice(iter(self.cuts), rank * workers + worker, None, ranks * workers)


def choose_balance(ranks: int) -> cp.Balance:
    """Return rules for batches as long as those of lhotse's sampler."""
    return cp.Balance(
        budgets={"frames": round(100 * MAX_DURATION)},
        samples_per_step=round(ranks * MAX_DURATION / MEAN_DURATION),
        accumulate="auto", mode="window", work="padded",
    )  # fmt: skip


def load_by_sampler(path: Path, rank: int, ranks: int, buckets: int = 30) -> Any:
    """Return torch's loader with lhotse's sampler, as lhotse's users write it."""
    sampler = DynamicBucketingSampler(
        CutSet.from_jsonl_lazy(path), max_duration=MAX_DURATION, num_buckets=buckets, shuffle=True,
        rank=rank, world_size=ranks,
    )  # fmt: skip
    return torch.utils.data.DataLoader(make_speech(), sampler=sampler, batch_size=None)


def load_eager(path: Path, ranks: int, place: Any = None) -> cp.DataLoader:
    """Return a balanced loader of a CutSet in memory, with a table of costs."""
    cuts = CutSet.from_jsonl(path)
    return cp.DataLoader(
        cuts, shuffle=True, collate_fn=collate_cuts, ranks=place, balance=choose_balance(ranks),
        cost={"frames": [count_frames(cut)["frames"] for cut in cuts]},
    )  # fmt: skip


def load_lazy(path: Path, ranks: int, place: Any = None) -> cp.DataLoader:
    """Return a balanced loader of cuts that are read by their lines."""
    cuts = cp.JsonlDataset(path, ReadCut())
    return cp.DataLoader(
        cuts, shuffle=True, collate_fn=collate_cuts, ranks=place, balance=choose_balance(ranks)
    )


def load_stream(path: Path) -> cp.DataLoader:
    """Return a loader in which each rank packs its share of a lazy CutSet."""
    return cp.DataLoader(
        CutStream(path), num_workers=1, collate_fn=collate_cuts, cost=count_frames,
        balance=cp.Balance(budgets={"frames": round(100 * MAX_DURATION)}, work="padded"),
    )  # fmt: skip


def name_cuts(batch: dict[str, Any]) -> list[str]:
    """Return the names of a batch's cuts."""
    return [cut.id for cut in batch["supervisions"]["cut"]]


def count_samples(batch: dict[str, Any]) -> int:
    """Return the samples of sound in a batch, without padding."""
    return int(batch["supervisions"]["num_samples"].sum())
