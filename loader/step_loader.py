"""A loader of whole steps, for frameworks that count, shard or restore what a loader yields."""

from collections.abc import Iterator
from typing import Any, Generic

from .dataloader import DataLoader
from .step.info import BatchT, Step


class StepLoader(Generic[BatchT]):
    """Yields one Step an optimizer step: a rank's microbatches, and a StepInfo for each.

    So a framework that counts one optimizer step for each item counts right, and a batch it has
    fetched ahead keeps its weights: `for batch, info in zip(step.microbatches, step.infos)`.
    """

    def __init__(self, loader: DataLoader[Any, BatchT]) -> None:
        """`loader` is a balanced DataLoader, which has the position; ValueError for a plain one."""
        self.loader = loader
        self.dataset = loader.dataset
        if not getattr(loader, "is_balanced", False):
            raise ValueError(
                f"a StepLoader yields the steps of a balanced DataLoader, got {loader!r:.80}: give "
                'it balance="balanced", say'
            )

    def __iter__(self) -> Iterator[Step[BatchT]]:
        """Return an iterator over steps; one that begins inside a step has what is left of it."""
        return self.loader.steps()

    def __len__(self) -> int:
        """Return the optimizer steps of an epoch; TypeError where the plan decides."""
        return self.loader.num_steps

    def state_dict(self, after: Step[Any] | None = None) -> dict[str, Any]:
        """Return the ledger of what has been handed out; with `after`, up to that step."""
        return self.loader.state_dict(after.infos[-1] if after is not None else None)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a ledger, of this or of the DataLoader; ValueError if it cannot."""
        self.loader.load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration runs."""
        self.loader.set_epoch(epoch)

    def close(self) -> None:
        """End all processes of the loader; it can be used again afterwards."""
        self.loader.close()
