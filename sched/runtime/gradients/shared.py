"""Parameters that several ranks of a pipeline hold: tied layers, and layers that are replicated.

Each rank's copy gets the gradients of the rank's own stages. Their sum is the gradient of the one
parameter that they stand for, and with the same gradients the copies stay the same.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from .divided import local_part
from .reduction import Reduction


@dataclass(frozen=True, slots=True)
class SharedParameters:
    """A rank's copies. `ranks`: the pipeline ranks that have each. `groups`: by their ranks."""

    rank: int
    parameters: Mapping[str, nn.Parameter]
    ranks: Mapping[str, tuple[int, ...]]
    groups: Mapping[tuple[int, ...], dist.ProcessGroup]

    def counted_elsewhere(self) -> list[nn.Parameter]:
        """Return the copies that another rank counts in a norm: all but the first rank's."""
        return [p for name, p in self.parameters.items() if self.ranks[name][0] != self.rank]

    def copy_values(self) -> None:
        """Give all copies the values of the first rank's; all ranks call this together."""
        for name in sorted(self.parameters):
            with torch.no_grad():
                part = local_part(self.parameters[name])
                dist.broadcast(part, group=self.groups[self.ranks[name]], group_src=0)

    def sum_gradients(self, deadline_s: float) -> None:
        """Sum gradients over the copies. Raises RuntimeError if another rank is lost."""
        running = []
        # In one order on all ranks: a rank may be in several groups.
        for ranks in sorted(self.groups):
            names = sorted(name for name in self.parameters if self.ranks[name] == ranks)
            reduction = Reduction(self.groups[ranks])
            reduction.start(self.parameters[name] for name in names)
            running.append(reduction)
        for reduction in running:
            reduction.finish(deadline_s)


def in_several(modules: Sequence[nn.Module]) -> frozenset[int]:
    """Return the `id` of the parameters that are in more than one of a rank's stages.

    Their gradient is whole only when the last of these stages is done.
    """
    counts = Counter(
        number for module in modules for number in {id(p) for p in module.parameters()}
    )
    return frozenset(number for number, count in counts.items() if count > 1)
