"""Makes batches of the fields that a process needs, where others train on the rest of them.

Pixels are for the ranks of an encoder, tokens for a first stage, labels for a last one. A field
that is left out is not copied from where its sample lies, nor padded, nor pinned. Counts and
weights are those of whole microbatches all the same, since they come with the plan.
"""

from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.pin_memory import pin_memory as pin

from ...balancer.planning.problem.balance import Balance
from ..step.info import StepInfo
from .buffers import BufferPool
from .fields import EVERY
from .layouts import COLLATE_BY_LAYOUT
from .stacking import WarmCollate

# The names of a batch's fields, or a function from a microbatch's info to them; None for all.
WantedFields = Collection[str] | Callable[[StepInfo], Collection[str]] | None
CollateFn = Callable[[list[Any]], Any]
Collate = Callable[[list[Any], Container[str]], Any]


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
    """Makes a microbatch's batch of its samples.

    `collate` is given the samples and the names that are wanted, and may return more. `pins`:
    whether batches are pinned.
    """

    collate: Collate
    fields: WantedFields = None
    pins: bool = False

    def collated(self, samples: list[Any], info: StepInfo) -> Any:
        """Return the batch of samples, of which labels may still be counted."""
        return self.collate(samples, self._wanted(info))

    def finished(self, batch: Any, info: StepInfo) -> Any:
        """Return what the process gets of a batch. Raises TypeError if that has no fields."""
        wanted = self._wanted(info)
        if wanted is not EVERY:
            batch = choose(batch, wanted)
        return pin(batch) if self.pins else batch  # type: ignore[no-untyped-call]

    def _wanted(self, info: StepInfo) -> Container[str]:
        if self.fields is None:
            return EVERY
        return self.fields(info) if callable(self.fields) else self.fields


def choose(batch: Any, fields: Container[str]) -> ChosenBatch:
    """Return the fields of a batch that are wanted. Raises TypeError for what has no fields.

    >>> choose({"input_ids": 1, "labels": 2}, {"labels"})
    {'labels': 2}
    """
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"fields= chooses from a batch's fields, and collate_fn returns a "
            f"{type(batch).__name__}: return a dict, or leave fields"
        )
    return ChosenBatch((name, value) for name, value in batch.items() if name in fields)


def checked_fields(fields: Any) -> WantedFields:
    """Return what names the wanted fields; ValueError for anything else."""
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


def batch_maker(
    balance: Balance, collate_fn: CollateFn | None, fields: WantedFields, pins: bool
) -> BatchMaker:
    """Return what makes the batches of a layout. Raises ValueError for a collate_fn beside one."""
    pins = pins and torch.accelerator.is_available()
    if balance.layout == "torch":
        made = collate_fn or default_collate
        if made is default_collate:
            return BatchMaker(partial(_stacked, WarmCollate()), fields, pins=pins)
        return BatchMaker(lambda samples, _: made(samples), fields, pins=pins)
    if collate_fn is not None:
        raise ValueError(f"collate_fn belongs to layout 'torch', not {balance.layout!r}")
    given: dict[str, Any] = {
        "pad_id": balance.pad_id,
        "dummy_tile": balance.dummy_tile,
        "allocate": BufferPool().take,
    }
    collate = COLLATE_BY_LAYOUT[balance.layout]
    return BatchMaker(
        lambda samples, wanted: collate(samples, fields=wanted, **given),
        fields,
        pins=pins,
    )


def collate_in_worker(
    balance: Balance, collate_fn: CollateFn | None, fields: WantedFields
) -> CollateFn:
    """Return what a worker collates with; it can be pickled if collate_fn can.

    Fields that a function chooses, by a microbatch's info, are chosen in the trainer.
    """
    wanted: Any = EVERY if fields is None or callable(fields) else fields
    if balance.layout == "torch":
        made = collate_fn or default_collate
        return made if made is not default_collate or wanted is EVERY else partial(_chosen, wanted)
    return partial(
        COLLATE_BY_LAYOUT[balance.layout], pad_id=balance.pad_id, dummy_tile=balance.dummy_tile,
        fields=wanted,
    )  # fmt: skip


def _chosen(wanted: Container[str], samples: list[Any]) -> Any:
    return _stacked(default_collate, samples, wanted)


def _stacked(collate: CollateFn, samples: list[Any], wanted: Container[str]) -> Any:
    if wanted is not EVERY and all(type(sample) is dict for sample in samples):
        samples = [{n: v for n, v in sample.items() if n in wanted} for sample in samples]
    return collate(samples)
