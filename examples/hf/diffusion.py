"""Train a diffusion model on images of many resolutions; each batch has images of one.

Run: torchrun --nproc-per-node 2 examples/hf/diffusion.py --model CONFIG --data FOLDER
--model is the folder of a UNet2DModel's configuration; the model is made new. Needs diffusers.
"""

import argparse
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.training_utils import find_nearest_bucket, generate_aspect_ratio_buckets
from PIL import Image, ImageOps
from torch import distributed

import counterpoise as cp


class Pictures(torch.utils.data.Dataset):
    """Pictures of a folder, each resized and cropped to a bucket (height, width) of diffusers."""

    def __init__(self, folder: str, sides: list[int]) -> None:
        """Choose each picture's bucket by its header, of the largest of `sides` that it fills."""
        ladders = [generate_aspect_ratio_buckets(side) for side in sorted(sides)]
        self.paths, self.sizes = sorted(Path(folder).rglob("*.[jp][pn]g")), []
        for path in self.paths:
            with Image.open(path) as picture:
                width, height = picture.size
            buckets = ladders[max(1, sum(side**2 <= width * height for side in sides)) - 1]
            self.sizes.append(buckets[find_nearest_bucket(height, width, buckets)])

    def __len__(self) -> int:
        """Return the number of pictures."""
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return float32 (3, height, width), from -1 to 1."""
        with Image.open(self.paths[index]) as picture:
            pixels = np.array(ImageOps.fit(picture.convert("RGB"), self.sizes[index][::-1]))
        return torch.from_numpy(pixels).permute(2, 0, 1) / 127.5 - 1


def main() -> None:
    """Train for some steps; print what each rank's batches hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="the folder of a configuration")
    parser.add_argument("--data", required=True, help="a folder of pictures")
    parser.add_argument("--sides", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--batch-size", type=int, default=8, help="pictures of the largest side")
    parser.add_argument("--steps", type=int, default=100, help="at most, of one epoch")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    model = UNet2DModel.from_config(UNet2DModel.load_config(args.model)).to(device).train()
    ddp, noising = torch.nn.parallel.DistributedDataParallel(model), DDPMScheduler()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data, budget = Pictures(args.data, args.sides), args.batch_size * max(args.sides) ** 2
    cost = {"pixels": [h * w for h, w in data.sizes], "shape": [h << 20 | w for h, w in data.sizes]}
    expected = distributed.get_world_size() * budget * len(data) // sum(cost["pixels"])
    balance = cp.Balance(budgets={"pixels": budget}, mode="window", samples_per_step=expected,
                         shapes=cp.Shapes(bucket_by="shape"))  # fmt: skip
    loader = cp.DataLoader(data, shuffle=True, num_workers=2, balance=balance, cost=cost)
    for step in islice(loader.steps(), args.steps):
        for images, info in zip(step.microbatches, step.infos, strict=True):
            noise, images = torch.randn(images.shape, device=device), images.to(device)
            times = torch.randint(0, 1000, (len(images),), device=device)
            noisy = noising.add_noise(images, noise, times)
            errors = (ddp(noisy, times).sample - noise).square().mean(dim=(1, 2, 3))
            cp.scale_loss(errors.sum(), info, per="sample").backward()
            print(f"step {step.number}, rank {info.rank}: {info.samples} of {tuple(images.shape)}")
        optimizer.step()
        optimizer.zero_grad()
    del ddp, model  # what outlives its group may hang (torch 2.13, gloo)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
