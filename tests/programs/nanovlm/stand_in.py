"""Runs nanoVLM's train.py on CPU ranks in float32, with a tiny model: it names cuda and nccl."""

import contextlib
import functools
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.programs.nanovlm import tiny

config: Any = import_module("models.config")
config.VLMConfig = functools.partial(config.VLMConfig, **tiny.MODEL)
config.TrainConfig = functools.partial(config.TrainConfig, **tiny.TRAINING)

cuda: Any = torch.cuda
cuda.set_device = lambda _: None
cuda.current_device = lambda: torch.device("cpu")
replaced: Any = dist
init, barrier = dist.init_process_group, dist.barrier
replaced.init_process_group = lambda **named: init(**named | {"backend": "gloo"})
replaced.barrier = lambda **_: barrier()
parallel: Any = torch.nn.parallel
parallel.DistributedDataParallel = lambda model, **_: DistributedDataParallel(model)
root: Any = torch
root.autocast = lambda **_: contextlib.nullcontext()
