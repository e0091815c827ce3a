"""Texts, images, videos and sound of tar samples in one balanced loop, with seven resources."""

import io
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("av")

from PIL import Image

import counterpoise as cp
from counterpoise import media
from counterpoise.workers.sources.interface import Probe, SampleError
from tests.tars import write_tar
from tests.workers.media.making import audio, video

RULE = media.FrameRule(fps=2, max_frames=8, multiple=2)
PATCH = 8
HOP = 160


def log_mel(sound: Any) -> Any:
    """Return as many frames as Whisper's features have, float32 (80, samples // 160)."""
    return np.resize(sound, (80, len(sound) // HOP))


def fitted(_frames: int, height: int, width: int) -> tuple[int, int]:
    """Return a size in whole patches, as a processor's smart_resize does."""
    return max(1, height // PATCH) * PATCH, max(1, width // PATCH) * PATCH


def members(raw: Mapping[str, Any], *kinds: str) -> list[str]:
    return sorted(name for name in raw if name.rpartition(".")[2] in kinds)


class Anything:
    """A transform of samples that have a text, and any number of images, videos and sounds."""

    deterministic = True

    def __call__(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        images = [np.asarray(Image.open(io.BytesIO(raw[name]))) for name in members(raw, "png")]
        videos = [
            media.decode_video(raw[name], RULE, fitted, name=name)
            for name in members(raw, "mp4", "webm")
        ]
        mels = [
            log_mel(media.decode_audio(raw[name], name=name))
            for name in members(raw, "wav", "flac", "mp3")
        ]
        patches = [each.shape[0] * each.shape[1] // PATCH**2 for each in images]
        frames = [each.shape[0] * each.shape[1] * each.shape[2] // PATCH**2 for each in videos]
        return {
            "key": raw["__key__"],
            "input_ids": np.zeros(len(raw["txt"]) + sum(patches) + sum(frames), np.int64),
            "labels": np.ones(len(raw["txt"]), np.int64),
            "images": images,
            "videos": videos,
            "mels": mels,
        }

    def probe(self, raw: Mapping[str, Any]) -> Probe:
        sizes = [Image.open(raw[name]).size for name in members(raw, "png")]
        videos = [
            media.probe_video(raw[name], RULE, fitted, name=name)
            for name in members(raw, "mp4", "webm")
        ]
        sounds = [
            media.probe_audio(raw[name], name=name) for name in members(raw, "wav", "flac", "mp3")
        ]
        patches = sum(width * height // PATCH**2 for width, height in sizes)
        moving = sum(each.frames * each.height * each.width // PATCH**2 for each in videos)
        cost = {
            "tokens": len(raw["txt"]) + patches + moving,
            "patches": patches + moving,
            "frames": sum(each.frames for each in videos),
            "mel_frames": sum(each.samples // HOP for each in sounds),
            "images": len(sizes),
            "clips": len(videos) + len(sounds),
            "label_tokens": len(raw["txt"]) - 1,
        }
        return Probe(raw["__key__"], cost)


def costs_of(sample: Mapping[str, Any]) -> Counter[str]:
    moving = sum(each.size // 3 // PATCH**2 for each in sample["videos"])
    patches = moving + sum(each.size // 3 // PATCH**2 for each in sample["images"])
    return Counter(
        tokens=len(sample["input_ids"]), patches=patches, frames=sum(map(len, sample["videos"])),
        mel_frames=sum(each.shape[1] for each in sample["mels"]), images=len(sample["images"]),
        clips=len(sample["videos"]) + len(sample["mels"]), label_tokens=len(sample["labels"]) - 1,
    )  # fmt: skip


def picture(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 samples: each with a text, and 0 to 2 of each of the others."""
    rng = np.random.default_rng(0)
    videos = [
        video(count=count, width=16 + 6 * k, height=24, container=container, codec=codec)
        for k, count in enumerate((3, 11, 30, 70))
        for container, codec in (("mp4", "libx264"), ("webm", "libvpx"))
    ]
    sounds = [
        (kind.lower(), audio(kind, int(rng.integers(900, 60_000)), rate, channels))
        for kind, rate, channels in [("WAV", 16_000, 1), ("FLAC", 44_100, 2), ("MP3", 24_000, 1)]
        * 3
    ]
    path = tmp_path_factory.mktemp("media") / "all.tar"
    members = dict[str, bytes]()
    for number in range(48):
        key = f"s{number:02}"
        members[f"{key}.txt"] = b"x" * int(rng.integers(2, 90))
        for k in range(rng.integers(0, 3)):
            members[f"{key}.i{k}.png"] = picture(*(PATCH * rng.integers(1, 9, 2)).tolist())
        for k in range(rng.integers(0, 3)):
            at = int(rng.integers(len(videos)))
            members[f"{key}.v{k}.{'webm' if at % 2 else 'mp4'}"] = videos[at]
        for k in range(rng.integers(0, 3)):
            kind, data = sounds[rng.integers(len(sounds))]
            members[f"{key}.a{k}.{kind}"] = data
    return write_tar(path, members)


def test_each_sample_costs_what_was_probed(shard: Path) -> None:
    dataset = cp.TarDataset(shard, Anything())
    for index in range(len(dataset)):
        assert dataset.probe(index).cost == costs_of(dataset[index])


def test_a_probe_of_a_long_file_reads_little_of_it(tmp_path: Path, monkeypatch: Any) -> None:
    long = video("webm", "libvpx", count=300, width=160, height=120, codec_options={"g": "30"})
    members = {"k.txt": b"xy", "k.webm": long, "k.wav": audio("WAV", 900_000)}
    dataset = cp.TarDataset(write_tar(tmp_path / "long.tar", members), Anything())
    read, files = [0], dataset._files
    whole = files.read_range

    def counted(path: Path, offset: int, size: int) -> bytes:
        read.append(size)
        return whole(path, offset, size)

    monkeypatch.setattr(files, "read_range", counted)
    assert dataset.probe(0).cost["frames"] == 8
    probed, read[:] = sum(read), [0]
    dataset.load(0)
    assert probed < sum(read) / 10


@pytest.mark.parametrize("workers", [0, 2])
def test_seven_resources_and_budgets_on_four_in_one_loop(shard: Path, workers: int) -> None:
    budgets = {"tokens": 1200, "frames": 20, "mel_frames": 900, "clips": 8}
    loader = cp.DataLoader(
        cp.TarDataset(shard, Anything()), shuffle=True, num_workers=workers, collate_fn=list,
        balance=cp.Balance(budgets=budgets, samples_per_step=16, accumulate="auto"),
    )  # fmt: skip
    seen = []
    for step in loader.steps():
        for batch, info in zip(step.microbatches, step.infos, strict=True):
            found = sum(map(costs_of, batch), Counter())
            assert {name: found[name] for name in info.costs} == info.costs
            assert len(info.costs) == 7
            over = {name for name, most in budgets.items() if info.costs[name] > most}
            assert set(info.over_budget) == over
            assert not over or len(batch) == 1
            seen += [sample["key"] for sample in batch]
    assert sorted(seen) == [f"s{number:02}" for number in range(48)]


def test_auto_balances_by_all_of_them(shard: Path, caplog: Any) -> None:
    with caplog.at_level("INFO", "counterpoise.loader.automatic"):
        loader = cp.DataLoader(
            cp.TarDataset(shard, Anything()), 4, shuffle=True, collate_fn=list,
            ranks=cp.Ranks(virtual=2),
            balance="auto",
        )  # fmt: skip
        assert sum(map(len, loader)) == 48
    assert "tokens, patches, frames, mel_frames, images, clips" in caplog.text


def test_a_damaged_member_names_sample_shard_and_member(tmp_path: Path) -> None:
    members = {"k.txt": b"xy", "k.v0.mp4": b"no video" * 9000, "l.txt": b"xy"}
    members["l.a0.wav"] = audio()[:30]
    dataset = cp.TarDataset(write_tar(tmp_path / "bad.tar", members), Anything())
    for index, member in ((0, "k.*v0.mp4: "), (1, "l.*a0.wav: ")):
        for look in (dataset.probe, dataset.load):
            with pytest.raises(
                SampleError, match=rf"sample '{member[0]}' of .*bad\.tar: {member[3:]}"
            ):
                look(index)
    loader = cp.DataLoader(dataset, 1, collate_fn=list, on_error="skip")
    assert list(loader) == []


def test_without_a_transform_media_are_bytes(shard: Path) -> None:
    dataset = cp.TarDataset(shard)
    for index in range(6):
        sample, cost = dataset[index], dataset.probe(index).cost
        size = sum(
            value.nbytes if isinstance(value, np.ndarray) else len(value)
            for value in sample.values()
        )
        assert cost["bytes"] == size
