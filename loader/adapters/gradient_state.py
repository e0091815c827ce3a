"""Does for a balanced loader what accelerate's own loaders do while they are iterated over.

accelerate reads from its GradientState which loader is being iterated over, whether this is its
last batch (gradients are synchronised then), and how many samples were added to fill it up. It also
puts batches onto its device. `accelerator.prepare` says that a loader is prepared by setting
`_is_accelerate_prepared`; from then on an `AccelerateFeed` does this for it.
"""

import sys
from typing import Any

from ..step.info import StepInfo


class AccelerateFeed:
    """Tells accelerate about a balanced loader's batches, and places them.

    `loader` is referred to weakly by accelerate: it gets the attributes end_of_dataloader and
    remainder, which GradientState reads. device: where batches go; None leaves them.
    """

    def __init__(self, device: Any, non_blocking: bool = False) -> None:
        """Use the feed of `prepared` where accelerate itself knows the device."""
        self.device = device
        self.non_blocking = non_blocking

    @classmethod
    def prepared(cls) -> "AccelerateFeed":
        """Return the feed for a loader that plain accelerator.prepare was given."""
        from accelerate import PartialState

        from .padded_gather import gather_padded

        gather_padded()
        return cls(PartialState().device)

    @staticmethod
    def accumulated() -> int:
        """Return the batches that accelerate accumulates."""
        from accelerate.state import GradientState

        return int(GradientState().num_steps)

    def begin(self, loader: Any, accumulate: int | str) -> None:
        """Begin an iteration; ValueError if accelerate accumulates another number of batches.

        accumulate: the microbatches that this process has in a step; "auto" if steps differ.
        """
        from accelerate.state import GradientState

        state = GradientState()
        check_accumulation(accumulate, state.num_steps)
        loader.end_of_dataloader, loader.remainder = False, 0
        state._add_dataloader(loader)

    def place(self, batch: Any) -> Any:
        """Return a batch on the device; the same object where all of it is there already."""
        if self.device is None or is_there(batch, self.device):
            return batch
        from accelerate.utils import send_to_device

        return send_to_device(batch, self.device, non_blocking=self.non_blocking)

    def end(self, loader: Any) -> None:
        """End the iteration that `begin` began; nothing happens when the interpreter ends."""
        state = sys.modules.get("accelerate.state")
        if state is not None and not sys.is_finalizing():
            state.GradientState()._remove_dataloader(loader)


def meets_once_a_step() -> bool:
    """Return whether accelerate's ranks exchange nothing before the last batch that accumulates.

    So it is under DDP, whose names begin with MULTI_. FSDP gathers parameters in every batch, and
    of DeepSpeed and others nothing is known here.
    """
    from accelerate.state import GradientState, PartialState

    each = GradientState().plugin_kwargs.get("sync_each_batch", False)
    return not each and PartialState().distributed_type.value.startswith("MULTI_")


def check_accumulation(accumulate: int | str, num_steps: int) -> None:
    """Raise ValueError where an optimizer step would come inside a planned one.

    num_steps: the batches that the framework accumulates. A multiple is allowed: several planned
    steps make one optimizer step then.
    """
    if accumulate == "auto":
        raise ValueError(
            'with accumulate="auto" steps differ in their number of microbatches, and accelerate '
            "counts to a fixed one: loop over loader.steps(), or give Balance(accumulate=...)"
        )
    if num_steps % int(accumulate):
        raise ValueError(
            f"a step of this loader has {accumulate} microbatches, and the optimizer steps after "
            f"every {num_steps}: give gradient_accumulation_steps={accumulate} to Accelerator or "
            f"TrainingArguments (or Balance(accumulate={num_steps}) to the loader), or loop over "
            "loader.steps()"
        )


def is_last(info: StepInfo, steps: int | None, last_rank: int) -> bool:
    """Return whether a microbatch is an epoch's last, where its number of `steps` is known."""
    return steps is not None and info.last and info.rank == last_rank and info.step == steps - 1


def is_there(batch: Any, device: Any) -> bool:
    """Return whether every tensor of a batch is on a device already."""
    if isinstance(batch, dict):
        return all(is_there(each, device) for each in batch.values())
    if isinstance(batch, list | tuple):
        return all(is_there(each, device) for each in batch)
    where = getattr(batch, "device", device)
    return where.type == device.type and device.index in (None, where.index)


def steps_if_known(loader: Any) -> int | None:
    """Return the number of steps in an epoch of a balanced loader, None where the plan decides."""
    try:
        steps: int = loader.num_steps
    except TypeError:
        return None
    return steps
