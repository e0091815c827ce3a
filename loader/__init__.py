"""The side of the trainer: DataLoader, steps, loss scaling, samplers.

    from counterpoise.loader import DataLoader

is the whole migration of a training loop; what is new are keyword-only arguments.
"""

from .dataloader import DataLoader
from .errors import LoaderError
from .layout import collate_packed, collate_padded
from .loss import scale_loss
from .remote import RemoteDataset
from .sampler import BalancedBatchSampler
from .step_info import Step, StepInfo

__all__ = [
    "BalancedBatchSampler",
    "DataLoader",
    "LoaderError",
    "RemoteDataset",
    "Step",
    "StepInfo",
    "collate_packed",
    "collate_padded",
    "scale_loss",
]
