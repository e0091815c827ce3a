"""Replaces the names of cuda that Automodel's recipe uses, by those of the CPU."""

import importlib
import types
from typing import Any

import torch


class TorchOnCPU(types.ModuleType):
    """torch, for modules that ask for torch.device("cuda", ...) by name."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def device(self, kind: str, *index: Any) -> torch.device:
        return torch.device("cpu") if kind == "cuda" else torch.device(kind, *index)


cuda: Any = torch.cuda
cuda.reset_peak_memory_stats = lambda *_: None
cuda.current_device = lambda: torch.device("cpu")
for name in ("_transformers.auto_model", "components.distributed.parallelizer"):
    module: Any = importlib.import_module(f"nemo_automodel.{name}")
    module.torch = TorchOnCPU("torch")
