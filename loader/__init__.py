"""The side of the trainer: DataLoader, steps, loss scaling, samplers.

    from counterpoise.loader import DataLoader

is the whole migration of a training loop; what is new are keyword-only arguments.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..balancer.planning.problem.balance import Balance as Balance
    from ..workers.collate.layouts import (
        collate_packed as collate_packed,
        collate_padded as collate_padded,
        collate_samples as collate_samples,
    )
    from ..workers.hf_processor.transform import HFProcessor as HFProcessor
    from . import adapters as adapters
    from .across import partition_across as partition_across
    from .balanced.settings import Balancer as Balancer
    from .collate.equivalence import (
        Equivalence as Equivalence,
        check_equivalence as check_equivalence,
    )
    from .dataloader import DataLoader as DataLoader
    from .models.kwargs import hf_kwargs as hf_kwargs
    from .on_error import OnError as OnError
    from .remote_dataset import RemoteDataset as RemoteDataset
    from .sampler import BalancedBatchSampler as BalancedBatchSampler
    from .step.by_source import loss_by_source as loss_by_source
    from .step.dispatch import ImageDispatch as ImageDispatch
    from .step.errors import LoaderError as LoaderError
    from .step.info import Step as Step, StepInfo as StepInfo
    from .step.loss import LossRule as LossRule, loss_rule as loss_rule, scale_loss as scale_loss
    from .step.ranks import Ranks as Ranks, Topology as Topology
    from .step_loader import StepLoader as StepLoader

# The names by their modules, "" for sub-packages; each is imported when it is first used (PEP 562).
_NAMES = {
    "": "adapters",
    "..balancer.planning.problem.balance": "Balance",
    "..workers.collate.layouts": "collate_packed collate_padded collate_samples",
    "..workers.hf_processor.transform": "HFProcessor",
    ".balanced.settings": "Balancer",
    ".collate.equivalence": "Equivalence check_equivalence",
    ".dataloader": "DataLoader",
    ".models.kwargs": "hf_kwargs",
    ".on_error": "OnError",
    ".across": "partition_across",
    ".remote_dataset": "RemoteDataset",
    ".sampler": "BalancedBatchSampler",
    ".step.by_source": "loss_by_source",
    ".step.dispatch": "ImageDispatch",
    ".step.errors": "LoaderError",
    ".step.info": "Step StepInfo",
    ".step.loss": "LossRule loss_rule scale_loss",
    ".step.ranks": "Ranks Topology",
    ".step_loader": "StepLoader",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = [*_HOMES]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = importlib.import_module(_HOMES[name] or f".{name}", __name__)
        globals()[name] = public = getattr(home, name) if _HOMES[name] else home
        return public
