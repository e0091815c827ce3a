"""Describes as JSON how batches are made of samples, so that workers elsewhere make them.

What cannot be said so, a collate_fn of the user's or a Layout with code, is made in the trainer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta
from torch.utils.data import default_collate
from torch.utils.data._utils import collate as torchs

from ...balancer.planning.problem.balance import Balance
from ...balancer.planning.problem.layout import Layout, as_layout
from ...balancer.protocol.records import Integer, read_record
from .stacked import EVERY, CollateFn, list_options, stacked

_Tokens = Annotated[int, Meta(ge=1, lt=1 << 31)]


@dataclass(frozen=True, slots=True)
class _Description:
    """The way a batch is made: "samples" are collated by the trainer, "stacked" by default_collate.

    The fields of a "layout" are as in collate_samples; of others they have their defaults.
    """

    kind: Literal["samples", "stacked", "layout"]
    takes_empty: bool = False
    layout: Mapping[str, Any] = field(default_factory=dict)
    pad_id: Integer = 0
    dummy_tile: Annotated[int, Meta(ge=0, le=1 << 13)] = 0
    shift_labels: bool = True
    align: _Tokens = 1
    length: tuple[_Tokens, ...] = ()


def describe_layout(balance: Balance, collate_fn: CollateFn | None) -> dict[str, Any]:
    """Return how batches are made, as JSON values for read_layout.

    "kind" is "samples" where workers cannot make them; "takes_empty": they make one of no samples.
    """
    layout = as_layout(balance.layout)
    if layout is None:
        is_torchs = collate_fn in (None, default_collate) and _is_unchanged()
        return {"kind": "stacked" if is_torchs else "samples", "takes_empty": False}
    description = {"kind": "samples", "takes_empty": layout.base is not None}
    if type(layout) is Layout:  # and has no code of its own
        laid = {"pad_id": layout.pad_id, "shift_labels": layout.shift_labels}
        description |= {**list_options(balance), **laid}
        description |= {"kind": "layout", "layout": layout.to_dict()}
    return description


def read_layout(description: object) -> CollateFn | None:
    """Return the function that makes batches so, with all their fields; None for "samples".

    Raises ValueError, naming the field, for JSON that describe_layout cannot have made.

    >>> collate = read_layout(describe_layout(Balance(layout="packed"), None))
    >>> collate([{"input_ids": [5, 6]}, {"input_ids": [7]}])["input_ids"].tolist()
    [[5, 6, 7]]
    """
    if not isinstance(description, dict):
        raise ValueError(f"layout: needed is a JSON object, got {type(description).__name__}")
    parsed = read_record(_Description, description, "layout")
    if parsed.kind != "layout":
        if more := description.keys() - {"kind", "takes_empty"}:
            raise ValueError(f"layout: kind {parsed.kind!r} has no {min(more)}")
        return partial(stacked, EVERY) if parsed.kind == "stacked" else None
    from .layouts import collate_samples  # here: "stacked" does without

    laid = {"pad_id": parsed.pad_id, "shift_labels": parsed.shift_labels}
    layout = Layout.from_dict({**parsed.layout, **laid})
    if parsed.takes_empty != (layout.base is not None):
        raise ValueError(f"layout.takes_empty: it follows from base, which is {layout.base!r}")
    return partial(
        collate_samples, layout=layout, dummy_tile=parsed.dummy_tile, align=parsed.align,
        length=parsed.length or None,
    )  # fmt: skip


def _is_unchanged() -> bool:
    """Return whether default_collate does what it does elsewhere: it can be changed."""
    return all(f.__module__ == torchs.__name__ for f in torchs.default_collate_fn_map.values())
