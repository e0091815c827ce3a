"""Balanced data loading and pipeline schedules for training vision-language models in PyTorch.

    import counterpoise as cp

gives the names below, each imported when it is first used: the import itself reads neither
torch nor numpy. `__init__.pyi` tells editors and type checkers what they are.
"""

import importlib

# Where each name comes from; "" for a sub-package itself.
_HOMES = {
    "Balance": "balancer",
    "BalancedBatchSampler": "loader",
    "Balancer": "loader",
    "DataLoader": "loader",
    "EnergonDataset": "workers",
    "HFDataset": "workers",
    "HFProcessor": "loader",
    "Images": "balancer",
    "JsonlDataset": "workers",
    "Layout": "balancer",
    "LoaderError": "loader",
    "MDSDataset": "workers",
    "Mixture": "workers",
    "OnError": "loader",
    "ParquetDataset": "workers",
    "PipelineOrder": "balancer",
    "Ranks": "loader",
    "RemoteDataset": "loader",
    "Shapes": "balancer",
    "StepInfo": "loader",
    "TarDataset": "workers",
    "Topology": "loader",
    "Work": "balancer",
    "adapters": "loader",
    "balancer": "",
    "check_equivalence": "loader",
    "fleet": "workers",
    "hf_kwargs": "loader",
    "loader": "",
    "media": "workers",
    "scale_loss": "loader",
    "sched": "",
    "workers": "",
}

__all__ = sorted(["__version__", *_HOMES])


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, and keep it (PEP 562)."""
    if name == "__version__":
        found = importlib.import_module(".balancer.protocol.records", __name__).VERSION
    elif name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    elif home := _HOMES[name]:
        found = getattr(importlib.import_module(f".{home}", __name__), name)
    else:
        found = importlib.import_module(f".{name}", __name__)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
