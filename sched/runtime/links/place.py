"""The place of this process among the ranks of a job: its groups, and how all meet at the start.

torch makes groups and exchanges objects with timeouts of its own, of half an hour. Here nobody
waits longer than the pipeline's deadline.

With tensor parallelism a pipeline has one process of each rank, and there are several side by side,
which are called lanes. Where units divide their modules over other numbers of processes, a process
of a unit with few of them is in several lanes. It enters the sums and exchanges of each of them
with the same, so all lanes find the same, and goes on with what the first of its lanes has found.
"""

import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from .process_groups import PeerLostError, add_up, ranks_of, report_lost, wait_for

T = TypeVar("T")
# Apart from messages that the training loop may have under way.
_TAG = 19
# Apart from those of processes that still wait elsewhere, whose messages have other sizes.
FAULTS = 20


_START = "make the pipeline"


def await_all(deadline_s: float) -> None:
    """Wait until all processes of the job have called this. Raises as `monitored_gather` does.

    Without gloo it does nothing: NCCL connects two ranks on first use, with its own timeout.
    """
    if "cpu:gloo" in dist.get_backend_config() and dist.group.WORLD is not None:
        monitored_gather(torch.zeros(1), dist.group.WORLD, deadline_s, _START)


def monitored_gather(
    own: Tensor, group: dist.ProcessGroup, deadline_s: float, what: str, tag: int = _TAG
) -> list[Tensor]:
    """Return every rank's tensor, all of one size, by messages: who does not send is known.

    `what`: what they come for. The messages are on the CPU. Raises PeerLostError on every process
    that is there if others do not come within the deadline, with the ranks of all that are missing.
    The group cannot be used any more after that.
    """
    rank, ranks = group.rank(), group.size()
    others = [other for other in range(ranks) if other != rank]
    found = [own if each == rank else torch.empty_like(own) for each in range(ranks)]
    running: list[tuple[int, dist.Work | None]] = []
    for other in others:
        try:
            running.append((other, group.send([own], other, tag)))
            running.append((other, group.recv([found[other]], other, tag)))
        except RuntimeError:  # its connection is closed
            running.append((other, None))
    until = monotonic() + deadline_s
    missing = {other for other, work in running if work is None or not _arrives(work, until)}
    if missing:
        raise PeerLostError(
            f"rank {rank} of {ranks} waits since {deadline_s:g} s for rank "
            f"{', '.join(map(str, sorted(missing)))}, which did not come to {what}; every process "
            "of the job has to"
        )
    return found


def _arrives(work: dist.Work, until: float) -> bool:
    """Return whether a message comes in time. One that has come is found after that time, too."""
    try:
        work.wait(timedelta(seconds=max(0.001, until - monotonic())))
    except RuntimeError:
        return False
    return True


def gather_objects(
    own: T,
    group: dist.ProcessGroup | None,
    device: torch.device,
    deadline_s: float,
    what: str = _START,
    tag: int = _TAG,
) -> list[T]:
    """Return what every rank of a group gives, by rank; all of them call this to do `what`.

    `group`: None for this process alone. `device`: where the group's messages are, if it has none
    on the CPU. `tag`: of the messages there. Raises PeerLostError if a rank is lost or the deadline
    passes, with the ranks that did not come where messages are on the CPU.
    """
    if group is None or group.size() == 1:
        return [own]
    text = torch.frombuffer(bytearray(pickle.dumps(own)), dtype=torch.uint8)
    on_cpu = device.type == "cpu" or "cpu:gloo" in dist.get_backend_config(group)

    def gather(tensor: Tensor) -> Tensor:
        if on_cpu:
            return torch.stack(monitored_gather(tensor, group, deadline_s, what, tag))
        given = tensor.to(device)
        found = [torch.empty_like(given) for _ in range(group.size())]
        wait_for(group.allgather([found], [given]), given, deadline_s)
        return torch.stack(found).cpu()

    with report_lost():
        sizes = gather(torch.tensor(len(text))).tolist()
        # Collectives take equal parts.
        padded = text.new_zeros(max(sizes))
        padded[: len(text)] = text
        rows = gather(padded)
    return [
        pickle.loads(row[:size].numpy().tobytes()) for row, size in zip(rows, sizes, strict=True)
    ]


def device_of(kind: str) -> torch.device:
    """Return this process' device of a type."""
    if kind == "cpu":
        return torch.device(kind)
    return torch.device(kind, torch.accelerator.current_device_index())


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
        return ranks_of(self.replicas)

    def communicator_ranks(self, communicators: Iterable[str]) -> Mapping[str, Sequence[int]]:
        """Return the ranks that enter collectives on each communicator."""
        return {name: range(self.ranks) for name in sorted(communicators)}
