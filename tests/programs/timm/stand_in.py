"""Runs timm's train.py on CPU ranks: it tells DDP the CPU's name, which DDP takes for a GPU's."""

from typing import Any

import torch


class ParallelOnCPU(torch.nn.parallel.DistributedDataParallel):
    """DDP that is told no device."""

    def __init__(self, module: torch.nn.Module, **named: Any) -> None:
        super().__init__(module, **named | {"device_ids": None})


parallel: Any = torch.nn.parallel
parallel.DistributedDataParallel = ParallelOnCPU
