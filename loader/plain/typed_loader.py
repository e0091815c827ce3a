"""torch's DataLoader with two types for checkers: of the samples, and of the batches.

    loader = DataLoader(dataset, collate_fn=stack)      # stack(samples) -> torch.Tensor
    for batch in loader:                                # a torch.Tensor

What collate_fn returns is the type of the batches. Both may be written: DataLoader[int, Batch].
Neither has to be: both are Any then. At run time the second says nothing.
"""

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch.utils.data as torch_data

from ..step.info import BatchT

if TYPE_CHECKING:
    # torch's is generic too; most people write no parameter.
    from typing_extensions import TypeVar as TypeVarWithDefault

    T = TypeVarWithDefault("T", covariant=True, default=Any)

    class TypedLoader(torch_data.DataLoader[T], Generic[T, BatchT]):
        """torch's DataLoader, with a parameter for its batches."""

else:
    T = TypeVar("T", covariant=True)

    class TypedLoader(torch_data.DataLoader[T]):
        """torch's DataLoader, which takes a second parameter and drops it."""

        def __class_getitem__(cls, types: Any) -> Any:
            """Return the alias of the first type."""
            return super().__class_getitem__(types[0] if isinstance(types, tuple) else types)
