# The names that __init__.py imports lazily, for editors and type checkers.

from . import balancer, loader, sched, workers
from .balancer import Balance, Layout, time_ns
from .loader import (
    BalancedBatchSampler,
    DataLoader,
    HFProcessor,
    ImageDispatch,
    LoaderError,
    RemoteDataset,
    Step,
    StepInfo,
    StepLoader,
    Topology,
    adapters,
    check_equivalence,
    hf_kwargs,
    loss_rule,
    scale_loss,
)
from .workers import JsonlDataset, Mixture, TarDataset, VisionLanguage, media

__version__: str

__all__ = [
    "Balance",
    "BalancedBatchSampler",
    "DataLoader",
    "HFProcessor",
    "ImageDispatch",
    "JsonlDataset",
    "Layout",
    "LoaderError",
    "Mixture",
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
    "check_equivalence",
    "hf_kwargs",
    "loader",
    "loss_rule",
    "media",
    "scale_loss",
    "sched",
    "time_ns",
    "workers",
]
