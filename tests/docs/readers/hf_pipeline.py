"""What the reader of hf-pipeline.md has: a config, a mesh's sizes, and a loader of steps."""

import tempfile
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy
from torch.optim import AdamW
from transformers import AutoModelForCausalLM, LlamaConfig

dist.init_process_group("gloo", f"file://{tempfile.mktemp()}", rank=0, world_size=1)
dp = pp = 1
config = LlamaConfig(
    vocab_size=10, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
)
folder, trained = tempfile.mkdtemp(), tempfile.mkdtemp() + "/trained"
AutoModelForCausalLM.from_config(config).save_pretrained(folder)
layers_of_stages, mine_of_them = (2,), (0,)
batch = {"input_ids": torch.arange(5)[None], "labels": torch.arange(5)[None]}
batch["position_ids"] = torch.tensor([[0, 1, 2, 0, 1]])
info = SimpleNamespace(step_label_tokens=10, step_samples=2, costs={"tokens": 5})
step = SimpleNamespace(microbatches=[batch, batch], infos=[info, info])
loader = SimpleNamespace(steps=lambda: [step])
__all__ = [
    "AdamW", "AutoModelForCausalLM", "cross_entropy", "dp", "init_device_mesh", "pp", "torch",
]  # fmt: skip
