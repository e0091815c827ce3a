# The names that __init__.py imports lazily, for editors and type checkers.

from . import balancer, loader, sched, workers
from .balancer import Balance, Layout
from .loader import (
    BalancedBatchSampler,
    Balancer,
    DataLoader,
    HFProcessor,
    LoaderError,
    OnError,
    Ranks,
    RemoteDataset,
    StepInfo,
    Topology,
    adapters,
    check_equivalence,
    hf_kwargs,
    scale_loss,
)
from .workers import (
    EnergonDataset,
    HFDataset,
    JsonlDataset,
    MDSDataset,
    Mixture,
    ParquetDataset,
    TarDataset,
    fleet,
    media,
)

__version__: str

__all__ = [
    "Balance",
    "BalancedBatchSampler",
    "Balancer",
    "DataLoader",
    "EnergonDataset",
    "HFDataset",
    "HFProcessor",
    "JsonlDataset",
    "Layout",
    "LoaderError",
    "MDSDataset",
    "Mixture",
    "OnError",
    "ParquetDataset",
    "Ranks",
    "RemoteDataset",
    "StepInfo",
    "TarDataset",
    "Topology",
    "__version__",
    "adapters",
    "balancer",
    "check_equivalence",
    "fleet",
    "hf_kwargs",
    "loader",
    "media",
    "scale_loss",
    "sched",
    "workers",
]
