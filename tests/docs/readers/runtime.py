"""What the reader of runtime.md has: a mesh's sizes, stages, and a loader of steps."""

import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

dist.init_process_group("gloo", f"file://{tempfile.mktemp()}", rank=0, world_size=1)
dp = pp = 1
my_stages = {0: nn.Sequential(nn.Embedding(10, 64), nn.Linear(64, 10))}
two_stages = {0: nn.Embedding(10, 64), 1: nn.Linear(64, 10)}  # of zbv
others = {
    "stages": two_stages,
    "hidden": 64,
    "loss": lambda logits, labels: cross_entropy(logits, labels.flatten(), reduction="sum"),
}
vit_layers, IMAGE = [nn.Linear(8, 8) for _ in range(24)], 9
batch = {"input_ids": torch.arange(5), "labels": torch.arange(5)}
info = SimpleNamespace(step_label_tokens=10, step_samples=2, costs={"tokens": 5})
step = SimpleNamespace(microbatches=[batch, batch], infos=[info, info])
loader = SimpleNamespace(
    steps=lambda: [step], state_dict=dict[str, int], load_state_dict=lambda _: None
)
folder, number = Path(tempfile.mkdtemp()), 12
__all__ = ["AdamW", "cross_entropy", "dp", "init_device_mesh", "loader", "my_stages", "pp"]
