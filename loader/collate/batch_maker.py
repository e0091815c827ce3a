"""Makes batches in the trainer, of samples as a balancer sends them: decoded, or as they travel."""

from collections.abc import Container, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.data import default_collate

from ...balancer.planning.problem.balance import Balance
from ...workers.codec.columns import ColumnReader
from . import columnar, stacking
from .buffers import BufferPool
from .chosen import BatchMaker, CollateFn, WantedFields, check_collate, stack_wanted
from .fields import EVERY
from .layouts import COLLATE_BY_LAYOUT
from .stacking import WarmCollate, is_torchs
from .undecoded import Undecoded, collate_undecoded


def batch_maker(
    balance: Balance, collate_fn: CollateFn | None, fields: WantedFields, pins: bool
) -> BatchMaker:
    """Return what makes the batches of a layout; ValueError as check_collate."""
    check_collate(balance, collate_fn)
    pins = pins and torch.accelerator.is_available()
    if balance.layout == "torch":
        made = collate_fn or default_collate
        if made is default_collate:
            warm = WarmCollate()
            return BatchMaker(
                partial(stack_wanted, warm),
                fields,
                pins=pins,
                stack=partial(_payloads, warm),
                lay_out=stacking.collate_together if is_torchs() else None,
            )
        return BatchMaker(lambda samples, _: made(samples), fields, pins=pins)
    given: dict[str, Any] = {
        "pad_id": balance.pad_id,
        "dummy_tile": balance.dummy_tile,
        "allocate": BufferPool().take,
    }
    collate = COLLATE_BY_LAYOUT[balance.layout]
    lay_out = partial(
        columnar.collate_together, balance.layout, **{**given, "allocate": BufferPool().take}
    )
    return BatchMaker(
        lambda samples, wanted: collate(samples, fields=wanted, **given),
        fields,
        lends=False,
        pins=pins,
        stack=partial(collate_undecoded, balance.layout, ColumnReader(), **given),
        lay_out=lay_out,
        joins=True,
        takes_foreign=True,
    )


def _payloads(
    warm: WarmCollate, microbatches: Sequence[Undecoded], wanted: Container[str]
) -> list[Any] | None:
    if wanted is not EVERY:
        return None
    batches = [warm.of_payloads(*each) for each in microbatches]
    return None if any(each is None for each in batches) else batches
