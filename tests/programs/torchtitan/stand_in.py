"""Runs torchtitan on CPU: the device, its counters, flex_attention, and a sum that gloo has not.

torch.distributed.set_timeout, which torchtitan calls after its first step, is not in torch 2.13.0.
"""

import types
from typing import Any

import torch

anything: Any = torch
anything._utils._get_available_device_type = lambda: "cpu"
COUNTERS: dict[str, Any] = {
    "get_device_name": "cpu", "memory_stats": {}, "reset_peak_memory_stats": None,
    "get_device_properties": types.SimpleNamespace(total_memory=1 << 34), "empty_cache": None,
    "current_device": 0,
}  # fmt: skip
for counter, result in COUNTERS.items():
    setattr(torch.cpu, counter, lambda *_, result=result: result)
if not hasattr(torch.distributed, "set_timeout"):
    anything.distributed.set_timeout = lambda *_: None

from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torchtitan.models.common.attention import FlexAttention  # noqa: E402

divide = FSDPModule.set_gradient_divide_factor


def divide_after_sum(self: Any, factor: float) -> None:
    """Divide by a factor without PREMUL_SUM, which gloo has not."""
    divide(self, factor)
    self.set_force_sum_reduction_for_comms(True)


def attend(
    q: Any, k: Any, v: Any, *, block_mask: Any, scale: Any, enable_gqa: bool, **_: Any
) -> Any:
    """Do what flex_attention does, which has no backward on CPU."""
    sizes = (q.shape[0], 1, q.shape[2], k.shape[2])
    places = torch.meshgrid(*(torch.arange(n) for n in sizes), indexing="ij")
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, block_mask.mask_mod(*places), scale=scale, enable_gqa=enable_gqa
    )
    return out, types.SimpleNamespace(lse=None)


shards: Any = FSDPModule
shards.set_gradient_divide_factor = divide_after_sum
FlexAttention._compiled_flex_attn = staticmethod(attend)
