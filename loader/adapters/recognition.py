"""Answers accelerate's questions about a loader; DataLoader inherits it."""

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .gradient_state import AccelerateFeed

logger = logging.getLogger(__name__)

REBUILT_PLAIN = (
    "accelerate makes a torch DataLoader of a plain counterpoise.DataLoader: workers, on_error and "
    "state are torch's then; cp.adapters.prepare_accelerate(accelerator, loader) keeps ours"
)


class RecognisedLoader:
    """The attributes by which accelerate decides whether to rebuild a loader, and what to save."""

    # What accelerate's GradientState reads of the loader that is being iterated over.
    end_of_dataloader: bool = False
    remainder: int = -1
    _accelerate: "AccelerateFeed | None" = None

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
            # here: only accelerate's loops need them
            from .auto_loader import adopt_loop
            from .gradient_state import AccelerateFeed

            self._accelerate = AccelerateFeed.prepared()
            adopt_loop(self, AccelerateFeed.accumulated())
