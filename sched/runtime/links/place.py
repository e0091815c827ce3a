"""The place of this process among the ranks of a job, and the groups that it is in.

With tensor parallelism a pipeline has one process of each rank, and there are several side by side,
which are called lanes. Where units divide their modules over other numbers of processes, a process
of a unit with few of them is in several lanes. It enters the sums and exchanges of each of them
with the same, so all lanes find the same, and goes on with what the first of its lanes has found.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from .meeting import gather_objects
from .process_groups import add_up

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MeshPlace:
    """This process in the mesh: all pipelines' global ranks, its own rank in its one, its groups.

    `groups`: of the ranks of each pipeline that this process is in. `replicas`: of the ranks that
    hold the same stages. `lanes`: of those that do the same with other parts of the modules (tensor
    parallelism), each of which is in a pipeline of its own.
    """

    pipelines: tuple[tuple[int, ...], ...]
    rank: int
    groups: tuple[dist.ProcessGroup, ...]
    replicas: dist.ProcessGroup | None
    lanes: dist.ProcessGroup | None
    device: torch.device

    def gather(self, own: T, deadline_s: float) -> list[T]:
        """Return what every rank of this process' pipeline gives; all processes call this.

        Raises PeerLostError if a rank is lost or the deadline passes.
        """
        found = [gather_objects(own, group, self.device, deadline_s) for group in self.groups]
        return found[0]

    def add_up(self, tensor: Tensor, deadline_s: float) -> None:
        """Put the sum over the ranks of the pipeline, and its replicas, in place of a tensor.

        All processes call this. Raises RuntimeError as `gather` does.
        """
        add_up(tensor, self.groups, deadline_s)
        if self.replicas is not None:
            add_up(tensor, [self.replicas], deadline_s)

    @property
    def ranks(self) -> int:
        """Return the number of ranks that have stages."""
        return len(self.pipelines[0])

    @property
    def seat(self) -> int:
        """Return the rank of the program that this process runs."""
        return self.rank

    def seat_of(self, rank: int) -> int:
        """Return the rank of the program that a rank of this job or pipeline runs."""
        return rank

    @property
    def replica(self) -> int:
        """Return the data-parallel index."""
        return 0 if self.replicas is None else self.replicas.rank()

    @property
    def lane(self) -> int:
        """Return the tensor-parallel index."""
        return 0 if self.lanes is None else self.lanes.rank()

    @property
    def replica_ranks(self) -> frozenset[int]:
        """Return the global ranks that have this one's stages, over which FSDP2 divides them."""
        own = self.replicas
        return frozenset(() if own is None else dist.get_process_group_ranks(own))

    @property
    def checks_meshes(self) -> bool:
        """Return whether it is known over which processes parameters may be divided."""
        return self.lanes is not None

    def rooms(self, communicators: Iterable[str]) -> Mapping[str, Sequence[int]]:
        """Return the ranks that enter collectives on each communicator."""
        return {name: range(self.ranks) for name in sorted(communicators)}
