"""The side of the trainer: DataLoader, steps, loss scaling, samplers.

    from counterpoise.loader import DataLoader

is the whole migration of a training loop; what is new are keyword-only arguments.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..balancer.planning.problem.balance import Balance
    from . import adapters
    from .balanced.step_loader import StepLoader
    from .collate.equivalence import Equivalence, check_equivalence
    from .collate.hugging_face import hf_kwargs
    from .collate.layouts import collate_packed, collate_padded
    from .dataloader import DataLoader
    from .remote_dataset import RemoteDataset
    from .sampler import BalancedBatchSampler
    from .step.dispatch import ImageDispatch, StepImages
    from .step.errors import LoaderError
    from .step.info import Step, StepInfo
    from .step.loss import LossRule, loss_rule, scale_loss
    from .step.ranks import Topology

# Each is imported when it is first used (PEP 562): a loop loads what it uses. "" for a sub-package.
_HOMES = {
    "Balance": "..balancer.planning.problem.balance",
    "BalancedBatchSampler": ".sampler",
    "DataLoader": ".dataloader",
    "Equivalence": ".collate.equivalence",
    "ImageDispatch": ".step.dispatch",
    "LoaderError": ".step.errors",
    "LossRule": ".step.loss",
    "RemoteDataset": ".remote_dataset",
    "Step": ".step.info",
    "StepImages": ".step.dispatch",
    "StepInfo": ".step.info",
    "StepLoader": ".balanced.step_loader",
    "Topology": ".step.ranks",
    "adapters": "",
    "check_equivalence": ".collate.equivalence",
    "collate_packed": ".collate.layouts",
    "collate_padded": ".collate.layouts",
    "hf_kwargs": ".collate.hugging_face",
    "loss_rule": ".step.loss",
    "scale_loss": ".step.loss",
}

__all__ = [
    "Balance",
    "BalancedBatchSampler",
    "DataLoader",
    "Equivalence",
    "ImageDispatch",
    "LoaderError",
    "LossRule",
    "RemoteDataset",
    "Step",
    "StepImages",
    "StepInfo",
    "StepLoader",
    "Topology",
    "adapters",
    "check_equivalence",
    "collate_packed",
    "collate_padded",
    "hf_kwargs",
    "loss_rule",
    "scale_loss",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = importlib.import_module(_HOMES[name] or f".{name}", __name__)
        found = globals()[name] = getattr(home, name) if _HOMES[name] else home
        return found
