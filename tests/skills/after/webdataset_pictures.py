"""Trains a small model of pictures in tar shards, with DDP.

Run: torchrun --standalone --nproc-per-node 2 webdataset_pictures.py 'shards/pictures-{0..3}.tar'
"""

import io
import sys

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import counterpoise as cp
from counterpoise.workers import Probe

BATCH_SIZE = 8
CLASSES = 3


def decode(sample):
    """Return a picture (3, H, W) of its own size, and its class."""
    picture = Image.open(io.BytesIO(sample["jpg"])).convert("RGB")
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255
    return pixels, int(sample["cls"])


class Transform:
    def __call__(self, raw):
        return decode(raw)

    def probe(self, raw):
        wide, high = Image.open(raw["jpg"]).size
        return Probe(raw["__key__"], {"pixels": wide * high})


def collate(samples):
    """Pad pictures to the highest and the widest; return also a mask (B, H, W)."""
    pictures = [picture for picture, _ in samples]
    height = max(picture.shape[1] for picture in pictures)
    width = max(picture.shape[2] for picture in pictures)
    batch = torch.zeros(len(pictures), 3, height, width)
    mask = torch.zeros(len(pictures), height, width)
    for row, picture in enumerate(pictures):
        batch[row, :, : picture.shape[1], : picture.shape[2]] = picture
        mask[row, : picture.shape[1], : picture.shape[2]] = 1
    return batch, mask, torch.tensor([label for _, label in samples])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.pixels = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU())
        self.head = nn.Linear(8, CLASSES)

    def forward(self, pictures, mask):
        mask = mask[:, None]
        hidden = (self.pixels(pictures) * mask).sum((2, 3)) / mask.sum((2, 3))
        return self.head(hidden)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = cp.TarDataset(sys.argv[1], Transform())
    loader = cp.DataLoader(
        dataset,
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=1,
        collate_fn=collate,
        balance=cp.Balance("auto", counts="free"),
    )
    model = Model()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    for epoch in range(1):
        loader.set_epoch(epoch)
        for (pictures, mask, labels), info in loader.with_info():
            logits = ddp(pictures, mask)
            loss_sum = nn.functional.cross_entropy(logits, labels, reduction="sum")
            cp.scale_loss(loss_sum, info, per="sample").backward()
            optimizer.step()
            optimizer.zero_grad()
            if dist.get_rank() == 0:
                loss = loss_sum.item() / info.samples
                print(f"epoch {epoch} step {info.step} loss {loss:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
