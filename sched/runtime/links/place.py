"""The place of this process among the ranks of a job, and the groups that it is in."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class MeshPlace:
    """This process in the mesh: all pipelines' global ranks, its own rank in its one, its groups.

    `group`: of the pipeline's ranks. `replicas`: of the ranks that hold the same stages. `lanes`:
    of those that do the same with other parts of the modules (tensor parallelism), each of which is
    in a pipeline of its own.
    """

    pipelines: tuple[tuple[int, ...], ...]
    rank: int
    group: dist.ProcessGroup
    replicas: dist.ProcessGroup | None
    lanes: dist.ProcessGroup | None
    device: torch.device

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
