"""Makes batches of the fields that a process needs, where others train on the rest of them.

Pixels are for the ranks of an encoder, tokens for a first stage, labels for a last one. A field
that is left out is not copied from where its sample lies, nor padded, nor pinned. Counts and
weights are those of whole microbatches all the same, since they come with the plan.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch.utils.data import default_collate
from torch.utils.data._utils.pin_memory import pin_memory as pin

from ...balancer.planning.problem.balance import Balance
from ...balancer.planning.problem.layout import as_layout
from ...workers.collate.stacked import EVERY, CollateFn, list_options, stacked
from ..step.info import StepInfo

# The names of a batch's fields, or a function from a microbatch's info to them; None for all.
WantedFields = Collection[str] | Callable[[StepInfo], Collection[str]] | None


class ChosenBatch(dict[str, Any]):
    """A batch of which some fields were left out: to ask for one of those is an error that says it.

    >>> batch = ChosenBatch(labels=3)
    >>> batch["labels"], batch.get("pixel_values")
    (3, None)
    """

    def __missing__(self, name: str) -> Any:
        """Raise KeyError."""
        raise KeyError(
            f"no {name!r} in this batch, which has {', '.join(map(str, self)) or 'no field'}: its "
            "loader was given fields=, which names what this process needs of a microbatch"
        )


@dataclass(frozen=True, slots=True)
class BatchMaker:
    """Makes the batch of a microbatch; ValueError for a collate_fn beside a layout.

    pins: whether batches are pinned. has_layout: whether they are laid out by us.
    """

    balance: Balance
    collate_fn: CollateFn | None
    fields: WantedFields = None
    pins: bool = False
    has_layout: bool = field(init=False)

    def __post_init__(self) -> None:
        layout = as_layout(self.balance.layout)
        object.__setattr__(self, "has_layout", layout is not None)
        if layout is not None and self.collate_fn is not None:
            raise ValueError(f"collate_fn belongs to layout 'torch', not {layout.name!r}")

    @property
    def in_worker(self) -> CollateFn:
        """The function that a worker collates with; it can be pickled if collate_fn can.

        Fields that a function chooses, by a microbatch's info, are chosen in the trainer.
        """
        if self.draws:
            return self.collate_fn  # type: ignore[return-value]  # the user's own
        chosen: Any = EVERY if self.fields is None or callable(self.fields) else self.fields
        if not self.has_layout:
            return partial(stacked, chosen)
        from ...workers.collate.layouts import collate_samples  # here: 'torch' needs nothing of it

        return partial(collate_samples, fields=chosen, **list_options(self.balance))

    @property
    def draws(self) -> bool:
        """Return whether the function may draw random numbers: it is the user's."""
        return self.collate_fn is not None and self.collate_fn is not default_collate

    def finished(self, batch: Any, info: StepInfo) -> Any:
        """Return the part of a batch that the process gets; TypeError if it has no fields."""
        chosen = self.fields(info) if callable(self.fields) else self.fields
        if chosen is not None and not isinstance(batch, Mapping):
            raise TypeError(
                f"fields= chooses from a batch's fields, and collate_fn returns a "
                f"{type(batch).__name__}: return a dict, or leave fields"
            )
        if chosen is not None:
            batch = ChosenBatch((name, value) for name, value in batch.items() if name in chosen)
        return pin(batch) if self.pins else batch  # type: ignore[no-untyped-call]


def checked_fields(fields: Any) -> WantedFields:
    """Return the chosen fields' names, or the function of them; ValueError for anything else."""
    if fields is None or callable(fields):
        return fields  # type: ignore[no-any-return]
    if isinstance(fields, str) or not isinstance(fields, Collection):
        raise ValueError(
            f"fields is {fields!r}: give the names of the batch's fields that this process needs, "
            "such as {'input_ids'}, or a function from a StepInfo to them, such as pipe.needs"
        )
    if odd := [name for name in fields if not isinstance(name, str)]:
        raise ValueError(f"fields has {odd[0]!r}, and names of fields are text")
    return frozenset(fields)
