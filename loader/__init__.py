"""The side of the trainer: DataLoader, steps, loss scaling, samplers.

    from counterpoise.loader import DataLoader

is the whole migration of a training loop; what is new are keyword-only arguments.
"""

from ..balancer.planning.problem.balance import Balance
from . import adapters
from .balanced.step_loader import StepLoader
from .collate.equivalence.check import Equivalence, check_equivalence
from .collate.hugging_face import hf_kwargs
from .collate.layouts import collate_packed, collate_padded
from .dataloader import DataLoader
from .remote_dataset import RemoteDataset
from .sampler import BalancedBatchSampler
from .step.dispatch import ImageDispatch, StepImages
from .step.errors import LoaderError
from .step.frameworks import LossRule, loss_rule
from .step.info import Step, StepInfo
from .step.loss import scale_loss
from .step.topology import Topology

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
