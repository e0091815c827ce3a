"""What a reader of the skill's page of webdataset has: two tar shards of pictures."""

import io
import tarfile
from pathlib import Path
from typing import Any

import torch
from PIL import Image

SIDE = 8
Path("pictures").mkdir()
for shard in range(2):
    with tarfile.open(f"pictures/{shard}.tar", "w") as tar:
        for number in range(16):
            picture = io.BytesIO()
            Image.new("RGB", (16 + 8 * number, 64), "red").save(picture, "JPEG")
            for name, content in (("jpg", picture.getvalue()), ("cls", b"1")):
                info = tarfile.TarInfo(f"{shard}{number:03}.{name}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def decode(raw: Any) -> Any:
    wide, high = Image.open(io.BytesIO(raw["jpg"])).size
    return torch.ones((wide // SIDE) * (high // SIDE), 3), raw["cls"]


def collate(samples: Any) -> Any:
    pictures = torch.nn.utils.rnn.pad_sequence([each for each, _ in samples], batch_first=True)
    return pictures, pictures[..., 0], torch.tensor([label for _, label in samples])
