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
    loss_by_source,
    loss_rule,
    scale_loss,
)
from .workers import (
    JsonlDataset,
    Mixture,
    Selection,
    TarDataset,
    VisionLanguage,
    media,
    split_by_key,
)

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
    "Selection",
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
    "loss_by_source",
    "loss_rule",
    "media",
    "scale_loss",
    "sched",
    "split_by_key",
    "time_ns",
    "workers",
]
