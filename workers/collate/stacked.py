"""Makes batches by torch's default_collate, and says what options a layout of ours has."""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from ...balancer.planning.problem.balance import Balance
from ...balancer.planning.problem.values import as_images

CollateFn = Callable[[list[Any]], Any]


class _Every(Container[str]):
    def __contains__(self, name: object) -> bool:
        return True

    def __repr__(self) -> str:
        return "EVERY"


# In place of the names of a batch's fields: all of them.
EVERY: Container[str] = _Every()


def list_options(balance: Balance) -> dict[str, Any]:
    """Return the arguments of collate_samples, but for samples and fields."""
    tokens = balance.padding.collate_arguments()
    return {"layout": balance.layout, "dummy_tile": as_images(balance.images).dummy_tile, **tokens}


def stacked(fields: Container[str], samples: list[Any]) -> Any:
    """Return default_collate's batch of the wanted fields; notes to its error say what to do."""
    has_fields = all(type(sample) is dict for sample in samples)
    if has_fields and fields is not EVERY:
        samples = [{n: v for n, v in sample.items() if n in fields} for sample in samples]
    try:
        return default_collate(samples)
    except Exception as error:
        if "equal size" in str(error):  # of torch.stack: there is no class for it
            error.add_note("Samples differ in size: give a collate_fn that pads.")
        for name in dict.fromkeys(n for sample in samples if has_fields for n in sample):
            values = {p: sample[name] for p, sample in enumerate(samples) if name in sample}
            try:
                default_collate([*values.values()])
            except Exception:
                error.add_note(f"This is about field {name!r}: {describe_kinds(values)}.")
            if len(values) < len(samples):
                error.add_note(f"Field {name!r} is in samples {[*values]} of {len(samples)} only.")
        raise


def describe_kinds(values: Sequence[Any] | Mapping[int, Any]) -> str:
    """Return what values are, each kind with the first sample that has it.

    >>> describe_kinds([np.ones(3), 1, np.ones(2), 2])
    "float64 ('n',) in sample 0 and int in sample 1"
    """
    places: dict[str, int] = {}
    for place, value in values.items() if isinstance(values, Mapping) else enumerate(values):
        kind = type(value).__name__
        if isinstance(value, (np.ndarray, torch.Tensor)) and not getattr(value, "is_nested", False):
            kind = f"{value.dtype} {('n', *value.shape[1:]) if value.ndim else ()}"
        places.setdefault(kind, place)
    return " and ".join(f"{kind} in sample {place}" for kind, place in places.items())
