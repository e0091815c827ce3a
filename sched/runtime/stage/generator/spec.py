"""A generator as a user describes it: its module, the states it takes, and what its loss counts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...gradients import is_sharded
from ...parts.reading import WEIGHTS, count_tokens
from ...parts.step_data import TensorSpec
from ..taking import Take


@dataclass(frozen=True, slots=True)
class GeneratorSpec:
    """A second head that learns from the language model's last hidden states, such as a decoder.

    `module`: called with the states and the fields `inputs` of a microbatch, returns its loss, the
    *sum* over what it generates; None on ranks that do not run it. `tokens`: the number of its
    states in a microbatch, by cost ({"pictures": 16}) or as a function of its info; a microbatch of
    0 has nothing to generate, and the module is not called. `width`: of a state, so states are
    (tokens, width). `take`: called with the last hidden states and the fields of the microbatch
    that its rank has, `marks` among them, returns the states; without it, they are the hidden
    states. `states`: the name of the layer in the last stage's module whose output the hidden
    states are; the stage's output by default, which with vocabulary passes they are. `weigh`: what
    a microbatch's loss counts in the step's: "token" and "sample" as for the language model's, or a
    function of its info. `trainable`: False freezes the module; gradients go through it. `dtype`:
    the precision of the states. `module_name`: of the module in the whole model, under which
    checkpoints hold it; by default `generators.NAME`.
    """

    name: str
    module: nn.Module | None
    tokens: Mapping[str, int] | Callable[[Any], int]
    width: int
    inputs: tuple[str, ...] = ()
    take: Take | None = None
    marks: tuple[str, ...] = ()
    states: str = ""
    weigh: str | Callable[[Any], float] = "sample"
    trainable: bool = True
    dtype: torch.dtype = torch.float32
    module_name: str = ""

    def __post_init__(self) -> None:
        """Freeze what is not to be trained. Raises ValueError for sharded modules."""
        if isinstance(self.weigh, str) and self.weigh not in WEIGHTS:
            raise ValueError(
                f"the generator {self.name!r} weighs by {self.weigh!r}; give "
                f"{', '.join(map(repr, WEIGHTS))}, or a function of a microbatch's info"
            )
        if self.module is None:
            return
        if is_sharded(self.module):
            raise ValueError(
                f"the generator {self.name!r} is sharded with FSDP2, whose collectives ranks with "
                "nothing to generate would not enter; give the plain module, the pipeline sums its "
                "gradients over all ranks that have a copy"
            )
        if not self.trainable:
            self.module.requires_grad_(False)

    @property
    def called(self) -> str:
        """Return the name of the module in the whole model."""
        return self.module_name or f"generators.{self.name}"

    def states_spec(self, info: Any) -> TensorSpec:
        """Return the states of a microbatch; their gradient is alike.

        Raises ValueError for a missing cost.
        """
        count = count_tokens(f"the generator {self.name!r}", self.tokens, info)
        return TensorSpec((count, self.width), self.dtype)

    def weight(self, info: Any) -> float:
        """Return what the loss of a microbatch counts."""
        return (WEIGHTS[self.weigh] if isinstance(self.weigh, str) else self.weigh)(info)
