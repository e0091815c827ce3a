"""Balanced data loading and pipeline schedules for training vision-language models in PyTorch.

    import counterpoise as cp

gives the names below, each imported when it is first used: the import itself reads neither
torch nor numpy. `__init__.pyi` tells editors and type checkers what they are.
"""

import importlib

# The names by where they come from; "" for sub-packages themselves.
_NAMES = {
    "": "balancer loader sched workers",
    "balancer": "Balance Images Layout PipelineOrder Shapes Work partition",
    "loader": (
        "BalancedBatchSampler Balancer DataLoader HFProcessor LoaderError OnError Ranks "
        "RemoteDataset StepInfo Topology adapters check_equivalence hf_kwargs partition_across "
        "scale_loss"
    ),
    "workers": (
        "EnergonDataset HFDataset JsonlDataset MDSDataset Mixture ParquetDataset TarDataset "
        "fleet media"
    ),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

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
