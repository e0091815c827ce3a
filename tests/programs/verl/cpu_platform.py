"""A platform for verl's own plugin mechanism: processes on CPU that talk by gloo.

VERL_USE_EXTERNAL_MODULES=tests.programs.verl.cpu_platform VERL_PLATFORM=cpu
"""

import contextlib
import types

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


class _CPU(types.ModuleType):
    """torch.cpu, with what verl asks of torch.cuda besides."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(torch.cpu, name, lambda *_, **__: 0)


def _answer(value=None):
    return lambda *_, **__: value


# Abstract methods that have nothing to do on CPU, by what they return.
_ANSWERS = {
    "is_available": True, "is_ipc_supported": False, "current_device": 0, "device_count": 2,
    "get_device_capability": (None, None), "communication_backend_name": "gloo",
    "visible_devices_envvar": "CUDA_VISIBLE_DEVICES", "ray_resource_name": "CPU",
    "ray_noset_envvars": [], "nvtx_range": contextlib.nullcontext(),
    "set_device": None, "synchronize": None, "set_allocator_settings": None, "empty_cache": None,
    "profiler_start": None, "profiler_stop": None, "cudart": None,
}  # fmt: skip

PlatformRegistry.register(platform="cpu")(
    type(
        "PlatformCPU",
        (PlatformBase,),
        {
            "device_name": "cpu",
            "vendor_name": "cpu",
            "device_module": _CPU("cpu"),
            "manual_seed": staticmethod(torch.manual_seed),
            "manual_seed_all": staticmethod(torch.manual_seed),
            **{name: staticmethod(_answer(value)) for name, value in _ANSWERS.items()},
        },
    )
)
