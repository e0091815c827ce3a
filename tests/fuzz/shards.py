"""Small shards, and what each of their samples is."""

import io
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from counterpoise.workers import TarDataset
from counterpoise.workers.sources.interface import Probe

SHARDS, EACH = 3, 12
# Written this long ago: no change is made within one tick of the file system's clock.
AGE_S = 1000


class Reader:
    """A transform with a probe: key, text and number of a sample."""

    deterministic = True

    def fingerprint(self) -> str:
        """Return a name, under which costs are kept."""
        return "reader"

    def probe(self, raw: dict[str, Any]) -> Probe:
        """Return costs that follow from the text."""
        text = raw["txt"]
        return Probe(raw["__key__"], {"tokens": len(text), "label_tokens": text.count("e")}, 64)

    def __call__(self, raw: dict[str, Any]) -> tuple[str, str, int]:
        """Return what the sample is."""
        return raw["__key__"], raw["txt"], raw["cls"]


def texts(random: Random, shard: int) -> dict[str, str]:
    """Return texts by key; all of one length, so that one shard may take another's place."""
    return {
        f"{shard}-{number:03}": "".join(random.choices("abcdefgh ", k=40)) for number in range(EACH)
    }


def tar_bytes(members: Sequence[tuple[str, bytes]]) -> bytes:
    """Return a tar file."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, body in members:
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return file.getvalue()


def shard_bytes(samples: dict[str, str]) -> bytes:
    """Return a shard with these samples, two members each."""
    members = [
        member
        for key, text in samples.items()
        for member in ((f"{key}.txt", text.encode()), (f"{key}.cls", str(len(key)).encode()))
    ]
    return tar_bytes(members)


def write_shards(folder: Path, random: Random) -> dict[str, str]:
    """Write shards of some age; return all texts by key."""
    found: dict[str, str] = {}
    for shard in range(SHARDS):
        samples = texts(random, shard)
        path = folder / f"{shard}.tar"
        path.write_bytes(shard_bytes(samples))
        age(path)
        found |= samples
    return found


def age(path: Path) -> None:
    """Give a file a time in the past."""
    then = path.stat().st_mtime - AGE_S
    os.utime(path, (then, then))


def open_shards(folder: Path) -> TarDataset:
    """Open the shards of a folder; what is kept of them is beside them."""
    return TarDataset(str(folder / "*.tar"), Reader(), cache=folder)
