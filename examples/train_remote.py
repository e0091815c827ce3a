"""Train with a balancer and two workers as processes of their own, here all on one machine.

In earnest these are three commands on three machines:

    counterpoise balancer --listen tcp://10.0.0.1:5555 --insecure
    counterpoise worker tcp://10.0.0.1:5555 --root /data --insecure
    python train.py        # DataLoader(RemoteDataset("*.tar"), balancer="tcp://10.0.0.1:5555")

Run: python examples/train_remote.py
"""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from counterpoise.loader import Balance, DataLoader, RemoteDataset, scale_loss
from counterpoise.tools.demo.data import ensure_demo_data
from counterpoise.tools.demo.model import DemoModelShape, VisionLanguageModel, sum_loss


def start(*words: str) -> subprocess.Popen[bytes]:
    """Start a command of counterpoise."""
    return subprocess.Popen([str(Path(sys.executable).with_name("counterpoise")), *words])


def train(address: str) -> None:
    """Train for one epoch on shards that only the workers can see."""
    loader = DataLoader(
        RemoteDataset("*.tar", arguments={"tile_size": 32, "max_tiles": 6, "tokens_per_tile": 4}),
        balancer=address,
        shuffle=True,
        balance=Balance(
            budgets={"tiles": 64, "tokens": 4096},
            samples_per_step=32,
            accumulate="auto",
            layout="packed",
        ),
    )
    model = VisionLanguageModel(DemoModelShape(vocabulary=262, image_token=259))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in loader.steps():
        for batch, info in zip(step.microbatches, step.infos, strict=True):
            scale_loss(sum_loss(model(batch), batch["labels"]), info).backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step.number}: {sum(info.samples for info in step.infos)} samples")
    loader.close()


def main() -> None:
    """Start everything, train, and end what was started."""
    root = Path(ensure_demo_data(samples=128, shards=2)).parent
    with ExitStack() as started:
        # Any port, which the balancer writes into a file; the others read it there.
        file = Path(started.enter_context(TemporaryDirectory()), "balancer.addr")
        address = file.as_uri()
        for words in (
            ("balancer", "--listen", "tcp://127.0.0.1:*", "--address-file", str(file)),
            ("worker", address, "--root", str(root)),
            ("worker", address, "--root", str(root)),
        ):
            process = started.enter_context(start(*words))
            started.callback(process.terminate)
        train(address)


if __name__ == "__main__":
    main()
