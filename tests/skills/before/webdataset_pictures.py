"""Trains a small model of pictures in tar shards, read by webdataset, with DDP.

Run: torchrun --standalone --nproc-per-node 2 webdataset_pictures.py 'shards/pictures-{0..3}.tar'
"""

import io
import sys

import numpy as np
import torch
import torch.distributed as dist
import webdataset as wds
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

BATCH_SIZE = 8
STEPS = 8
CLASSES = 3


def decode(sample):
    """Return a picture (3, H, W) of its own size, and its class."""
    picture = Image.open(io.BytesIO(sample["jpg"])).convert("RGB")
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255
    return pixels, int(sample["cls"])


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
    dataset = (
        wds.WebDataset(sys.argv[1], nodesplitter=wds.split_by_node, shardshuffle=4, seed=1)
        .shuffle(64)
        .map(decode)
        .batched(BATCH_SIZE, collation_fn=collate, partial=False)
        .with_epoch(STEPS)
    )
    loader = DataLoader(dataset, batch_size=None, num_workers=1)
    model = Model()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    for epoch in range(1):
        for number, (pictures, mask, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(ddp(pictures, mask), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if dist.get_rank() == 0:
                print(f"epoch {epoch} step {number} loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
