"""The plan by which a model is split: each stage's layers, and which of them are recomputed.

`plan partition --out` and `plan recompute --out` write it, `sched.runtime.split` applies it:

    {"limit_bytes": 74000000000,
     "stages": [{"stage": 0, "first_layer": 0, "layers": 5, "recompute": [0, 1],
                 "predicted_bytes": 71000000000}, ...]}

Layers to recompute are counted from the stage's first. Limit and prediction may be missing.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ..ir.typed_json import Whole, read_json_file
from .stage_split import Sizes


class StageLayers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One stage's layers, and the positions of those to recompute."""

    stage: Whole
    first_layer: Whole
    layers: Annotated[int, msgspec.Meta(ge=1)]
    recompute: tuple[Whole, ...] = ()
    predicted_bytes: Whole | None = None

    @property
    def numbers(self) -> range:
        """Return the numbers of the stage's layers in the model."""
        return range(self.first_layer, self.first_layer + self.layers)


class SplitPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Every stage's layers. Raises ValueError for stages that do not follow each other.

    >>> split_of((2, 1)).stages[1].numbers
    range(2, 3)
    """

    stages: Annotated[tuple[StageLayers, ...], msgspec.Meta(min_length=1)]
    limit_bytes: Whole | None = None

    def __post_init__(self) -> None:
        """Check that each stage begins where the one before it ends."""
        layer = 0
        for number, stage in enumerate(self.stages):
            if (stage.stage, stage.first_layer) != (number, layer):
                raise ValueError(
                    f"stage {stage.stage} begins with layer {stage.first_layer}; stage {number} "
                    f"and layer {layer} come next"
                )
            if any(position >= stage.layers for position in stage.recompute):
                raise ValueError(
                    f"stage {number} has {stage.layers} layers and recomputes "
                    f"{list(stage.recompute)}; count them from its first"
                )
            layer += stage.layers

    @property
    def layers(self) -> int:
        """Return the number of the model's layers."""
        return sum(stage.layers for stage in self.stages)


def split_of(sizes: Sizes, recompute: Sequence[Sequence[int]] = ()) -> SplitPlan:
    """Return the plan of stages with these numbers of layers.

    `recompute`: for each stage the positions of the layers to recompute, none by default.
    """
    first = [0, *accumulate(sizes)]
    again = recompute or [()] * len(sizes)
    return SplitPlan(
        tuple(
            StageLayers(number, first[number], size, tuple(own))
            for number, (size, own) in enumerate(zip(sizes, again, strict=True))
        )
    )


def read_split(path: str | Path) -> SplitPlan:
    """Return the plan in a file. Raises ValueError, with its name, for anything else."""
    return read_json_file(Path(path), SplitPlan)


def dump_split(plan: SplitPlan) -> Mapping[str, Any]:
    """Return a plan for a JSON file, which `read_split` reads."""
    found: Mapping[str, Any] = msgspec.to_builtins(plan)
    return found
