# The names that __init__.py imports lazily, for editors and type checkers.

from . import balancer, loader, sched, workers
from .balancer import Balance
from .loader import (
    BalancedBatchSampler,
    DataLoader,
    LoaderError,
    RemoteDataset,
    Step,
    StepInfo,
    StepLoader,
    Topology,
    adapters,
    hf_kwargs,
    scale_loss,
)
from .workers import TarDataset, VisionLanguage

__version__: str

__all__ = [
    "Balance",
    "BalancedBatchSampler",
    "DataLoader",
    "LoaderError",
    "RemoteDataset",
    "Step",
    "StepInfo",
    "StepLoader",
    "TarDataset",
    "Topology",
    "VisionLanguage",
    "__version__",
    "adapters",
    "balancer",
    "hf_kwargs",
    "loader",
    "scale_loss",
    "sched",
    "workers",
]
