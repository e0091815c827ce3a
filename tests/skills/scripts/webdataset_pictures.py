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
SIDE = 8


def decode(sample):
    """Return the patches (N, 3 * SIDE * SIDE) of a picture of any size, and its class."""
    picture = Image.open(io.BytesIO(sample["jpg"])).convert("RGB")
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255
    patches = pixels.unfold(1, SIDE, SIDE).unfold(2, SIDE, SIDE)
    return patches.permute(1, 2, 0, 3, 4).flatten(2).flatten(0, 1), int(sample["cls"])


def collate(samples):
    """Return patches (B, N, D) padded to the picture with most of them, and a mask (B, N)."""
    pictures = [patches for patches, _ in samples]
    mask = [torch.ones(len(patches)) for patches in pictures]
    return (
        nn.utils.rnn.pad_sequence(pictures, batch_first=True),
        nn.utils.rnn.pad_sequence(mask, batch_first=True),
        torch.tensor([label for _, label in samples]),
    )


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Sequential(nn.Linear(3 * SIDE * SIDE, 16), nn.ReLU())
        self.head = nn.Linear(16, CLASSES)

    def forward(self, pictures, mask):
        hidden = (self.patches(pictures) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
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
