"""Images that all ranks of a mesh encode, before a step's passes, wherever their samples are.

The language model's schedule has no encoder passes then. Every rank has the whole encoder, and as
much to encode as the others; features come to the first stages' ranks, as leaves of these stages'
graphs, and their gradients go back when all passes are over. `loader.step.dispatch` moves them.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..parts import StepData
from ..settings import StageOptions
from ..stage.agreement import is_trained
from ..stage.calling import grad_mode


@dataclass(frozen=True, slots=True)
class TravellingImages:
    """An encoder whose images travel, on a mesh with pipeline stages: `Pipeline(encoders=...)`.

    `name`: of its features, as `merge` gets them. `dispatch`: a `loader.ImageDispatch` over
    all ranks of "dp" and "pp", with reduction="sum", the same on all of them. `inputs`: the field
    that is encoded. `sizes`: the field that has each image's size, such as "image_grid_thw", if the
    dispatch has a blank_size. `module_name`: of the encoder in the whole model, under which
    checkpoints hold it; by default `encoders.NAME`. Raises ValueError for other dispatches.
    """

    name: str
    dispatch: Any
    inputs: str = "pixel_values"
    sizes: str = ""
    module_name: str = ""

    def __post_init__(self) -> None:
        """Refuse what does not fit a pipeline."""
        if self.dispatch.reduction != "sum":
            raise ValueError(
                f"the dispatch of {self.name!r} has the reduction {self.dispatch.reduction!r}, and "
                'losses of a pipeline are weighted with the whole step: give reduction="sum"'
            )
        if self.dispatch.together is not None:
            raise ValueError(
                f"the dispatch of {self.name!r} encodes {self.dispatch.together} microbatches "
                "together, and a pipeline has several under way: leave together="
            )


@dataclass(slots=True)
class RankImages:
    """The travelling images of one rank, empty for models without. `rank`: in its pipeline."""

    spec: TravellingImages | None
    rank: int
    options: StageOptions
    # The dispatch's images of the step that runs.
    _step: Any = None

    @property
    def name(self) -> str:
        """Return the name of the features, "" without any."""
        return "" if self.spec is None else self.spec.name

    def named_modules(self) -> dict[str, nn.Module]:
        """Return the encoder by its name in the whole model."""
        if (spec := self.spec) is None:
            return {}
        return {spec.module_name or f"encoders.{spec.name}": spec.dispatch.encoder}

    def saved_elsewhere(self) -> frozenset[str]:
        """Return the encoder's name if another rank saves it: the pipeline's first one does."""
        return frozenset(self.named_modules() if self.rank else ())

    def fields(self) -> set[str]:
        """Return the fields that ranks of the first stage need."""
        return set() if self.spec is None else {self.spec.inputs, self.spec.sizes} - {""}

    def is_trained(self) -> bool | None:
        """Return whether features have a gradient, None without any."""
        return None if self.spec is None else is_trained(self.named_modules().values())

    def counted_elsewhere(self) -> list[nn.Parameter]:
        """Return the parameters that another rank counts in a norm: the pipeline's first one."""
        modules = self.named_modules().values() if self.rank else ()
        return [p for module in modules for p in module.parameters()]

    def encode(self, data: StepData, count: int, *, is_first: bool) -> StepData:
        """Return the data with the features, on ranks of the first stage; all ranks call this.

        `count`: the microbatches of the step. Raises as the dispatch does.
        """
        spec = self.spec
        if spec is None:
            return data
        batches = [microbatch.fields for microbatch in data.microbatches] if is_first else []
        # Ranks of other stages have no images, and encode those of others.
        pixels: list[Tensor | None] = [batch[spec.inputs] for batch in batches] or [None] * count
        sizes: list[list[Any]] | None = None
        if spec.sizes:
            sizes = [[*map(tuple, batch[spec.sizes].tolist())] for batch in batches] or [[]] * count
        near = next(spec.dispatch.encoder.parameters(), torch.zeros(()))
        with grad_mode(data.training), self.options.cast(near):
            self._step = spec.dispatch.step(pixels, sizes)
            features = {number: self._step.features(number) for number in range(count)}
        return replace(data, features=features if is_first else {})

    def finish(self) -> None:
        """Bring gradients back, and run the encoder's backward; all ranks call this."""
        step, self._step = self._step, None
        if step is not None:
            step.backward()


def rank_images(
    spec: TravellingImages | None, rank: int, sizes: tuple[int, int] | None, options: StageOptions
) -> RankImages:
    """Return the travelling images of a rank of a pipeline.

    `sizes`: of dp and pp, None in units. Raises ValueError for units, and for other ranks than the
    mesh's.
    """
    if spec is not None:
        if sizes is None:
            raise ValueError(
                "TravellingImages are for a mesh; in units give Units spread=True, and encoders= "
                "EncoderSpecs, whose ranks share the images of each microbatch"
            )
        if spec.dispatch.ranks != sizes[0] * sizes[1]:
            raise ValueError(
                f"images travel between {spec.dispatch.ranks} ranks, and the mesh has {sizes[0]} "
                f"x {sizes[1]} in dp and pp: make the ImageDispatch with the group of these, "
                "which is by default that of all processes"
            )
    return RankImages(spec, rank, options)
