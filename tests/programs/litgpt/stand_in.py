"""Runs litgpt's finetuning on CPU ranks: Lightning takes FSDP for accelerators only."""

from typing import Any

from lightning.fabric.strategies import DDPStrategy
from litgpt.finetune import full


def make_ddp(**_: Any) -> DDPStrategy:
    """Return DDP on gloo, where litgpt asks for FSDP."""
    return DDPStrategy(process_group_backend="gloo")


full.FSDPStrategy = make_ddp
