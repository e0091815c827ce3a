"""The values that an F is given where encoders' features enter the language model, by name.

An F gets the features of every encoder. The gradients of those that are trained go back as one
value, since a pass sends one: alone as it is, several one after another, flat.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .interface import Given


class Joint(NamedTuple):
    """The features of one F, by encoder.

    `names`: the encoders. `takes`: for each the name of what an edge brings. `returned`: whether
    its gradient is wanted.
    """

    names: tuple[str, ...]
    takes: tuple[str, ...]
    returned: tuple[bool, ...]

    def features(self, given: Given) -> list[Tensor]:
        """Return the features of all encoders as leaves of the stage's graph."""
        return [
            given[name][0].detach().requires_grad_(wanted)
            for name, wanted in zip(self.takes, self.returned, strict=True)
        ]


# By stage and microbatch of the F.
Joints = Mapping[tuple[int, int], Joint]


def pack(gradients: Sequence[Tensor]) -> Tensor:
    """Return gradients as one tensor, which `unpack` takes apart."""
    if len(gradients) == 1:
        return gradients[0]
    return torch.cat([gradient.reshape(-1) for gradient in gradients])


def unpack(packed: Tensor, shapes: Sequence[tuple[int, ...]], which: int) -> Tensor:
    """Return one of the gradients of these shapes that were packed."""
    if len(shapes) == 1:
        return packed
    sizes = [torch.Size(shape).numel() for shape in shapes]
    return torch.split(packed, sizes)[which].view(shapes[which])
