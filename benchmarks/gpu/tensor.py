"""Tensor-parallel layers whose collectives run beside their products, by the number of chunks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from counterpoise.sched.runtime import OverlappedColwiseParallel, OverlappedRowwiseParallel

from .parts import Row, Task, over, seconds_of, spread_ms, turns_of

CHUNKS = ("1", "2", "4", "8")


class TensorRank:
    """One rank of a tensor-parallel group, with the layers of an MLP for each number of chunks."""

    def __init__(self, rank: int, task: Task, ranks: int) -> None:
        del rank
        self.task = task
        width, tokens = (32, 64) if task.small else (4096, 8192)
        dtype = torch.float32 if task.small else torch.bfloat16
        mesh = init_device_mesh(task.device, (ranks,), mesh_dim_names=("tp",))
        with torch.device(task.device):
            self.inputs = torch.randn(1, tokens // ranks, width, dtype=dtype, requires_grad=True)
            self.layers = {}
            for chunks in CHUNKS:
                made = {"up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width)}
                self.layers[chunks] = nn.ModuleDict(made).to(dtype)
        for chunks, layers in self.layers.items():
            count = int(chunks)
            styles: dict[str, ParallelStyle] = {
                "up": OverlappedColwiseParallel(count), "down": OverlappedRowwiseParallel(count)
            }  # fmt: skip
            parallelize_module(layers, mesh, styles)

    def step(self, chunks: str) -> float:
        """Return the seconds of forward and backward."""
        layers = self.layers[chunks]
        dist.barrier()
        return seconds_of(
            lambda: layers["down"](layers["up"](self.inputs)).sum().backward(), self.task.device
        )


def measure_tensor(task: Task) -> list[Row]:
    """Return a row for each number of chunks."""
    ranks = 2 ** (min(task.devices, 8).bit_length() - 1)
    with task.start(TensorRank, ranks, ranks) as processes:
        times = turns_of(processes, "step", CHUNKS, task.seconds)
    return [
        {"chunks": chunks, "ranks": str(ranks), "forward and backward, ms": spread_ms(own),
         "over one chunk": over(own, times["1"])}
        for chunks, own in times.items()
    ]  # fmt: skip
