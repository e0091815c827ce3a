"""The side of the trainer: DataLoader, steps, loss scaling, samplers.

    from counterpoise.loader import DataLoader

is the whole migration of a training loop; what is new are keyword-only arguments.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..balancer.planning.problem.balance import Balance as Balance
    from ..workers.collate.layouts import collate_packed as collate_packed
    from ..workers.collate.layouts import collate_padded as collate_padded
    from ..workers.collate.layouts import collate_samples as collate_samples
    from ..workers.hf_processor.transform import HFProcessor as HFProcessor
    from . import adapters as adapters
    from .balanced.settings import Balancer as Balancer
    from .collate.equivalence import Equivalence as Equivalence
    from .collate.equivalence import check_equivalence as check_equivalence
    from .dataloader import DataLoader as DataLoader
    from .models.kwargs import hf_kwargs as hf_kwargs
    from .on_error import OnError as OnError
    from .remote_dataset import RemoteDataset as RemoteDataset
    from .sampler import BalancedBatchSampler as BalancedBatchSampler
    from .step.by_source import loss_by_source as loss_by_source
    from .step.dispatch import ImageDispatch as ImageDispatch
    from .step.dispatch import StepImages as StepImages
    from .step.errors import LoaderError as LoaderError
    from .step.info import Step as Step
    from .step.info import StepInfo as StepInfo
    from .step.loss import LossRule as LossRule
    from .step.loss import loss_rule as loss_rule
    from .step.loss import scale_loss as scale_loss
    from .step.ranks import Ranks as Ranks
    from .step.ranks import Topology as Topology
    from .step_loader import StepLoader as StepLoader

# Each is imported when it is first used (PEP 562): a loop loads what it uses. "" for a sub-package.
_HOMES = {
    "Balance": "..balancer.planning.problem.balance",
    "BalancedBatchSampler": ".sampler",
    "Balancer": ".balanced.settings",
    "DataLoader": ".dataloader",
    "Equivalence": ".collate.equivalence",
    "HFProcessor": "..workers.hf_processor.transform",
    "ImageDispatch": ".step.dispatch",
    "LoaderError": ".step.errors",
    "LossRule": ".step.loss",
    "OnError": ".on_error",
    "Ranks": ".step.ranks",
    "RemoteDataset": ".remote_dataset",
    "Step": ".step.info",
    "StepImages": ".step.dispatch",
    "StepInfo": ".step.info",
    "StepLoader": ".step_loader",
    "Topology": ".step.ranks",
    "adapters": "",
    "check_equivalence": ".collate.equivalence",
    "collate_packed": "..workers.collate.layouts",
    "collate_padded": "..workers.collate.layouts",
    "collate_samples": "..workers.collate.layouts",
    "hf_kwargs": ".models.kwargs",
    "loss_by_source": ".step.by_source",
    "loss_rule": ".step.loss",
    "scale_loss": ".step.loss",
}

__all__ = [*_HOMES]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = importlib.import_module(_HOMES[name] or f".{name}", __name__)
        globals()[name] = public = getattr(home, name) if _HOMES[name] else home
        return public
