"""A platform of verl's plugin registry: CPU. verl imports it by VERL_USE_EXTERNAL_MODULES.

For it, verl asks for the backend "cpu:gloo,cpu:gloo", which torch refuses.
"""

import contextlib
import types
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


class Device(types.ModuleType):
    """torch.cpu, and 0 for what verl asks of torch.cuda besides."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(torch.cpu, name, lambda *_, **__: 0)

    def get_device_name(self, *_: Any) -> str:
        return "CPU"

    def mem_get_info(self, *_: Any) -> tuple[int, int]:
        return 1 << 34, 1 << 34


METHODS: dict[str, Any] = {
    "is_available": True, "current_device": "cpu", "device_count": 1, "set_device": None,
    "synchronize": None, "manual_seed": None, "manual_seed_all": None, "empty_cache": None,
    "set_allocator_settings": None, "get_device_capability": (None, None), "cudart": None,
    "communication_backend_name": "gloo", "visible_devices_envvar": "CUDA_VISIBLE_DEVICES",
    "nvtx_range": contextlib.nullcontext(), "profiler_start": None, "profiler_stop": None,
    "ray_resource_name": "CPU", "ray_noset_envvars": [], "is_ipc_supported": False,
}  # fmt: skip
fields: dict[str, Any] = {
    name: lambda *_, result=result, **__: result for name, result in METHODS.items()
}
fields |= {"device_name": "cpu", "vendor_name": "cpu", "device_module": Device("verl_cpu")}
PlatformRegistry.register(platform="cpu")(type("PlatformCPU", (PlatformBase,), fields))

distributed: Any = torch.distributed
init = distributed.init_process_group
distributed.init_process_group = lambda backend, *args, **named: init(
    backend.replace("cpu:gloo,cpu:gloo", "gloo"), *args, **named
)
