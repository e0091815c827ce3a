"""Writes what `energon prepare` and MosaicML streaming's MDSWriter write, byte for byte.

Both were compared with the real tools' files once: megatron-energon 7.4.1 and mosaicml-streaming
0.13.0, see the tests that hold what those wrote.
"""

import bz2
import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

CRUDE: dict[str, Any] = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}


def prepare(
    folder: Path,
    counts: Mapping[str, int],
    parts: Mapping[str, list[str]],
    dataset: Mapping[str, Any] | None = CRUDE,
    exclude: Sequence[str] = (),
) -> Path:
    """Write `.nv-meta` beside the shards: `counts` of samples by shard, `parts` by split."""
    meta = folder / ".nv-meta"
    meta.mkdir(exist_ok=True)
    info = {"energon_version": "7.4.1", "shard_counts": dict(counts)}
    (meta / ".info.json").write_text(json.dumps(info, indent=2))
    split = {"split_parts": dict(parts), "exclude": list(exclude)}
    (meta / "split.yaml").write_text(yaml.dump(split, sort_keys=False))
    if dataset is not None:
        (meta / "dataset.yaml").write_text(yaml.dump(dict(dataset), sort_keys=False))
    (meta / "index.uuid").write_text("be7f7e3c-20a3-4e9b-a9d6-6c2a9a2d7f05")
    return folder


SIZES = {"int": 8, "int16": 2, "uint8": 1, "float32": 4, "float64": 8}
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "bz2": bz2.compress}


def write_mds(
    folder: Path,
    columns: Mapping[str, str],
    samples: Iterable[Mapping[str, bytes]],
    per_shard: int = 10,
    compression: str = "",
) -> Path:
    """Write samples whose values are encoded already, so many to a shard."""
    folder.mkdir(exist_ok=True)
    names = sorted(columns)
    sizes = [SIZES.get(columns[name]) for name in names]
    config = {
        "column_encodings": [columns[name] for name in names], "column_names": names,
        "column_sizes": sizes, "compression": compression or None, "format": "mds", "hashes": [],
        "size_limit": 1 << 26, "version": 2,
    }  # fmt: skip
    packed = [_sample(sample, names, sizes) for sample in samples]
    shards = []
    for number, at in enumerate(range(0, len(packed), per_shard)):
        data = _shard(packed[at : at + per_shard], json.dumps(config, sort_keys=True).encode())
        raw: dict[str, Any] = {
            "basename": f"shard.{number:05}.mds",
            "bytes": len(data),
            "hashes": {},
        }
        zipped: dict[str, Any] | None = None
        if compression:
            name = f"{raw['basename']}.{compression}"
            data = COMPRESSIONS[compression](data)
            zipped = {"basename": name, "bytes": len(data), "hashes": {}}
        (folder / (zipped or raw)["basename"]).write_bytes(data)
        count = len(packed[at : at + per_shard])
        shards.append({**config, "raw_data": raw, "samples": count, "zip_data": zipped})
    (folder / "index.json").write_text(json.dumps({"shards": shards, "version": 2}, sort_keys=True))
    return folder


def _sample(sample: Mapping[str, bytes], names: list[str], sizes: list[int | None]) -> bytes:
    lengths = [len(sample[name]) for name, size in zip(names, sizes, strict=True) if size is None]
    return np.array(lengths, np.uint32).tobytes() + b"".join(sample[name] for name in names)


def _shard(samples: list[bytes], config: bytes) -> bytes:
    ends = np.cumsum([0, *map(len, samples)]) + 4 + 4 * (len(samples) + 1) + len(config)
    count = np.uint32(len(samples)).tobytes()
    return count + ends.astype(np.uint32).tobytes() + config + b"".join(samples)


def image_list(files: Sequence[bytes]) -> bytes:
    """Return the bytes of a list[jpeg] or list[png]."""
    lengths = np.array([0, len(files), *map(len, files)], np.uint32)
    return lengths.tobytes() + b"".join(files)
