"""Answers frameworks' questions about a loader, and stands in for what they would rebuild.

Frameworks make a new DataLoader out of a given one: Lightning and Fabric to put a distributed
sampler into it, `skip_first_batches` to resume, accelerate to shard. They take the dataset and the
samplers along, and nothing of a plan. So a balanced loader shows stand-ins for `sampler` and
`batch_sampler`: iterating over them is an error that says what is right instead.
"""

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from torch.utils.data import DistributedSampler, Sampler

if TYPE_CHECKING:
    from .accelerate import AccelerateFeed

logger = logging.getLogger(__name__)

REBUILT_PLAIN = (
    "accelerate makes a torch DataLoader of a plain counterpoise.DataLoader: workers, on_error and "
    "state are torch's then; cp.adapters.prepare_accelerate(accelerator, loader) keeps ours"
)
REBUILT = (
    "a balanced loader was taken apart: its batches are planned over all ranks, and a framework "
    "(or skip_first_batches) asks for samples to make batches of its own. Use the loader as it "
    "is: resume with loader.load_state_dict(state), or let "
    "cp.adapters.attach_trainer(trainer, loader) or "
    "cp.adapters.prepare_accelerate(accelerator, loader) do it; for prediction in the data's "
    "order make a loader without balance"
)
SHARDED = (
    "a BalancedBatchSampler gives this rank's microbatches only, and a framework is about to shard "
    "it again, which loses samples: use cp.adapters.prepare_accelerate(accelerator, loader) in "
    "place of accelerator.prepare(loader), Trainer(use_distributed_sampler=False) or "
    "fabric.setup_dataloaders(loader, use_distributed_sampler=False)"
)


class RecognisedLoader:
    """The attributes by which accelerate decides whether to rebuild a loader, and what to save."""

    # What accelerate's GradientState reads of the loader that is being iterated over.
    end_of_dataloader: bool = False
    remainder: int = -1
    _accelerate: "AccelerateFeed | None" = None
    _late: Any  # a LateBalancedLoader, None without balance

    @property
    def is_balanced(self) -> bool:
        """True for a loader whose batches are planned over all ranks."""
        raise NotImplementedError

    @property
    def use_stateful_dataloader(self) -> bool:
        """True with balance: accelerate's save_state and load_state then carry the ledger."""
        return self.is_balanced

    @property
    def _is_accelerate_prepared(self) -> bool:
        """True with balance: accelerate uses such a loader as it is, and rebuilds any other."""
        if not self.is_balanced:
            logger.warning(REBUILT_PLAIN)
        return self.is_balanced

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, prepared: bool) -> None:
        """Do from now on what accelerate's own loaders do; accelerator.prepare sets this."""
        if prepared and self.is_balanced and self._accelerate is None:
            from .accelerate import feed_prepared  # here: only accelerate's loops need it

            feed_prepared(self)


def refuse() -> NoReturn:
    """Raise the error that names the right lines."""
    raise ValueError(REBUILT)


class PlannedSampler(DistributedSampler[Any]):
    """Stands for the plan's order; a DistributedSampler, so that Lightning and Fabric inject none.

    `set_epoch`, which they call on a loader's sampler, is the loader's: they count epochs, and
    Fabric does so from 0 again after a resume.
    """

    def __init__(self, dataset: Any, set_epoch: Callable[[int], None]) -> None:
        """DistributedSampler's own constructor would ask for ranks, which are not known yet."""
        self.dataset = dataset
        self._set_epoch = set_epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the loader's epoch."""
        self._set_epoch(epoch)

    def __len__(self) -> int:
        """Return the number of samples, of all ranks."""
        dataset: Any = self.dataset
        return len(dataset)

    def __iter__(self) -> Iterator[Any]:
        """Raise ValueError: its caller is about to make other batches."""
        refuse()


class PlannedBatchSampler(Sampler[Any]):
    """Stands for the plan's microbatches; cannot be iterated over, nor made again by a framework.

    batch_size and drop_last are the loader's arguments. even_batches is what accelerate's
    join_uneven_inputs sets: all ranks have the same number of microbatches whatever it is.
    """

    sampler: PlannedSampler
    batch_size: int | None
    drop_last: bool
    even_batches = True

    def __init__(self, *_: Any, **__: Any) -> None:
        """Raise ValueError: Lightning makes batch samplers again, with a sampler of its own."""
        refuse()

    def __iter__(self) -> Iterator[Any]:
        """Raise ValueError: its caller is about to make other batches."""
        refuse()


def stand_ins(loader: Any, set_epoch: Callable[[int], None]) -> dict[str, Any]:
    """Return both stand-ins of a loader by the attributes that they are shown as."""
    sampler = PlannedSampler(loader.dataset, set_epoch)
    batch_sampler = PlannedBatchSampler.__new__(PlannedBatchSampler)
    batch_sampler.sampler, batch_sampler.batch_size = sampler, loader.batch_size
    batch_sampler.drop_last = loader.drop_last
    return {"sampler": sampler, "batch_sampler": batch_sampler}


def refuse_to_be_sharded(ranks: int) -> NoReturn:
    """Raise what BalancedBatchSampler.batch_size is: who asks for it makes the batches again.

    accelerate's BatchSamplerShard and Lightning's injection read it first. ValueError if there are
    several ranks, else AttributeError: microbatches have no common size.
    """
    if ranks > 1:
        raise ValueError(SHARDED)
    raise AttributeError("a BalancedBatchSampler has no batch_size: its microbatches differ")
