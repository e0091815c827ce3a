"""Count what a step keeps for its backward passes, in whatever runtime.

A storage counts from when autograd saves it until nothing holds it any more, so that what a runtime
itself keeps of it (for W, or as a receive buffer) counts as well, once. Parameters do not count.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef


class SavedStorages:
    """The storages that autograd has saved and that exist; `most` is their peak, in bytes."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._left_out = frozenset(p.untyped_storage().data_ptr() for p in parameters)
        self._bytes: dict[Any, int] = {}  # by weak reference, which torch does not type
        self.most = 0

    @property
    def held(self) -> int:
        """Return the bytes of those that exist now."""
        self._bytes = {ref: size for ref, size in self._bytes.items() if not ref.expired()}
        return sum(self._bytes.values())

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what is saved inside the block."""
        with saved_tensors_hooks(self._add, lambda tensor: tensor):
            yield

    def _add(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._left_out:
            reference: Any = StorageWeakRef
            self._bytes[reference(storage)] = storage.nbytes()
            self.most = max(self.most, self.held)
        # Else a graph whose output is saved by its own node would hold itself.
        return tensor.detach()
