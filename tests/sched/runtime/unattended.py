"""A training script that catches nothing: `unattended.py FOLDER`, ranks as torchrun gives them.

After the first step, rank 1 does what the file `what` of the folder says: it raises an error in a
forward, or goes on.
"""

import os
import sys
from pathlib import Path

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from counterpoise.sched.runtime import Pipeline
from tests.sched.runtime.cases import loader_step, mean_loss
from tests.sched.runtime.models import HIDDEN, make_batches, make_stages

DEADLINE_S = 3.0


class Troubled(nn.Module):
    """A stage that fails in its tenth forward."""

    def __init__(self, inside: nn.Module, what: str) -> None:
        super().__init__()
        self.inside, self.what, self.runs = inside, what, 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        if self.runs == 10 and self.what == "raise":
            raise ValueError("an image of no pixels")
        return self.inside(x)


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stage: nn.Module = make_stages(ranks)[rank].float()
    if rank == 1:
        stage = Troubled(stage, (folder / "what").read_text())
    pipe = Pipeline(
        init_device_mesh("cpu", (ranks,), mesh_dim_names=("pp",)), schedule="1f1b",
        stages={rank: stage}, hidden=HIDDEN, loss=mean_loss, deadline_s=DEADLINE_S,
    )  # fmt: skip
    batches = make_batches(8, equal=False)
    while True:
        pipe.step(loader_step(batches, 100))
        (folder / f"pid{rank}").write_text(str(os.getpid()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
