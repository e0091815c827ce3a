"""Links to the other ranks, over torch.distributed.

A channel delivers in the order of its sends: no tags. A communicator runs its collectives in the
order in which the ranks enter them. Nothing here waits but `Transfer.wait`.

On NCCL, transfers between two ranks share a stream per group, in both directions, so a receive that
waits would hold up later sends to the same peer. Hence a group for every ordered pair of ranks that
has messages and one for every communicator of the program, all of them used once at the start, in
one order, since NCCL connects on first use.

What ranks exchange is whole in all lanes of tensor parallelism. A process that is in several lanes
receives it in the first of them, and sends it in those that are its receiver's first, so that every
process gets it once: a channel has as many groups as receivers, one or several or none.
"""

import inspect
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..compiled import Collective, Op, Value
from ..parts import TensorSpec

Channel = tuple[int, int]
T = TypeVar("T")
# For a thread that waits beside the rank, which has a deadline of its own.
_FOREVER_S = 1e6


class Transfer(Protocol):
    """A transfer under way."""

    def done(self) -> bool:
        """Return whether `wait` would return at once."""

    def wait(self, deadline_s: float) -> Tensor | None:
        """Return what arrives here, None at an end that only gives. Raises PeerLostError."""

    def watched(self) -> "Transfer":
        """Return the same for a caller that asks whether it is over before it waits."""


class Links(Protocol):
    """The connection of one rank to the others; ranks are those of the pipeline."""

    def send(self, tensor: Tensor, target: int, value: Value) -> Transfer:
        """Start to send; the tensor may not change until the transfer is done."""

    def receive(self, spec: TensorSpec, source: int, value: Value) -> Transfer:
        """Post a receive of the channel's next message, which is this value."""

    def enter(
        self, collective: Collective, tensor: Tensor | None, spec: TensorSpec, value: Value
    ) -> Transfer:
        """Enter a collective with a contribution, None where `spec` is broadcast to this rank."""


class PeerLostError(RuntimeError):
    """A transfer failed or passed its deadline; whose fault it is, the pipeline finds out."""


@contextmanager
def report_lost() -> Iterator[None]:
    """Raise PeerLostError for an error of torch's, of which the first line says what it is."""
    try:
        yield
    except PeerLostError:
        raise
    except RuntimeError as error:
        raise PeerLostError(str(error).splitlines()[0]) from error


class _Working(NamedTuple):
    """One tensor under way. `arrives`: the one that is filled, None where it only gives."""

    works: tuple[dist.Work, ...]
    tensor: Tensor
    arrives: Tensor | None = None

    def done(self) -> bool:
        """Return whether the transfer is over, well or not."""
        return all(work.is_completed() for work in self.works)

    @report_lost()
    def wait(self, deadline_s: float) -> Tensor | None:
        """Return what has arrived. On CUDA the stream waits, and the host does not."""
        for work in self.works:
            wait_for(work, self.tensor, deadline_s)
        return self.arrives

    def watched(self) -> "Transfer":
        """Return what a thread waits for: gloo says that it is over only to those who wait."""
        return self if self.tensor.is_cuda or self.done() else _Watched(self)


class _Watched:
    """A transfer that a thread waits for."""

    def __init__(self, transfer: _Working) -> None:
        self._arrival: Future[Tensor | None] = Future()
        # A rank that gives up ends the process without it (drive.py).
        threading.Thread(target=self._watch, args=(transfer,), daemon=True).start()

    def _watch(self, transfer: _Working) -> None:
        try:
            self._arrival.set_result(transfer.wait(_FOREVER_S))
        except PeerLostError as error:
            self._arrival.set_exception(error)

    def done(self) -> bool:
        """Return whether the transfer is over, well or not."""
        return self._arrival.done()

    def wait(self, deadline_s: float) -> Tensor | None:
        """Return what has arrived."""
        try:
            return self._arrival.result(deadline_s)
        except TimeoutError as error:
            raise PeerLostError(f"Timed out after {deadline_s} s") from error

    def watched(self) -> "_Watched":
        """Return the transfer, that is watched already."""
        return self


def add_up(tensor: Tensor, groups: Sequence[dist.ProcessGroup], deadline_s: float) -> None:
    """Put the sum over a group's ranks, of several the first one's, in place of a tensor.

    Raises RuntimeError if a peer is lost or the deadline has passed.
    """
    tensors = [tensor, *(tensor.clone() for _ in groups[1:])]
    running = [
        (dist.all_reduce(copy, group=group, async_op=True), copy)
        for copy, group in zip(tensors, groups, strict=True)
        if group.size() > 1
    ]
    for work, copy in running:
        wait_for(work, copy, deadline_s)


def wait_for(work: dist.Work, tensor: Tensor, deadline_s: float) -> None:
    """Wait for a transfer of a tensor. On CUDA the stream waits, and the host does not.

    Raises RuntimeError if a peer is lost or the deadline has passed.
    """
    if tensor.is_cuda:
        work.wait()
    else:
        work.wait(timedelta(seconds=deadline_s))


def group_ranks(group: dist.ProcessGroup | None) -> frozenset[int]:
    """Return the processes of a group, none without it."""
    return frozenset(() if group is None else dist.get_process_group_ranks(group))


def list_channels(lists: Iterable[Sequence[Op]]) -> list[Channel]:
    """Return the ordered pairs of ranks that have messages, sorted, from all ranks' operations."""
    return sorted(
        {(op.source, rank) for rank, ops in enumerate(lists) for op in ops if op.source is not None}
    )


def refuse_one_connection(device: torch.device) -> None:
    """Raise ValueError for the setting under which NCCL's waiting receives stop all streams."""
    if device.type == "cuda" and os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
        raise ValueError(
            "CUDA_DEVICE_MAX_CONNECTIONS=1 puts all streams into one queue, where a receive that "
            "waits stops the passes behind it; unset it, or set it to 8 or more"
        )


@dataclass(frozen=True, slots=True)
class Groups:
    """The process groups of one rank of a pipeline, as its links; ranks are the pipeline's.

    `channels`: of each, a group for every process that receives what this one sends, or the one
    that it receives from. `sharers`: of ranks that have a parameter in common.
    """

    rank: int
    device: torch.device
    channels: Mapping[Channel, Sequence[dist.ProcessGroup]]
    communicators: Mapping[str, dist.ProcessGroup]
    sharers: Mapping[tuple[int, ...], dist.ProcessGroup] = field(default_factory=dict)

    @report_lost()
    def send(self, tensor: Tensor, target: int, value: Value) -> Transfer:
        """Start to send on the channel to `target`."""
        del value
        groups = self.channels[self.rank, target]
        return _Working(tuple(group.send([tensor], 1, 0) for group in groups), tensor)

    @report_lost()
    def receive(self, spec: TensorSpec, source: int, value: Value) -> Transfer:
        """Post a receive on the channel from `source`."""
        del value
        (group,) = self.channels[source, self.rank]
        tensor = spec.empty(self.device)
        return _Working((group.recv([tensor], 0, 0),), tensor, tensor)

    @report_lost()
    def enter(
        self, collective: Collective, tensor: Tensor | None, spec: TensorSpec, value: Value
    ) -> Transfer:
        """Start a collective."""
        del value
        group, root = self.communicators[collective.communicator], collective.root
        tensor = spec.empty(self.device) if tensor is None else tensor
        arrives: Tensor | None = tensor
        if collective.operation == "broadcast":
            work = dist.broadcast(tensor, group=group, group_src=root, async_op=True)
        elif collective.operation == "sum":
            work = dist.reduce(tensor, group=group, group_dst=root, async_op=True)
            arrives = tensor if group.rank() == root else None
        else:
            gathered = tensor.new_empty((group.size() * len(tensor), *tensor.shape[1:]))
            work = dist.all_gather_single(gathered, tensor, group=group, async_op=True)
            arrives = gathered.view(group.size(), *tensor.shape)
        return _Working((work,), tensor, arrives)

    def warm_up(self, deadline_s: float) -> None:
        """Use every group once, so that all connections are there. Raises PeerLostError."""
        spec, value = TensorSpec((1,)), Value("START", 0)
        for source, target in sorted(self.channels):
            with naming("uses", (source, target), self.channels[source, target]):
                if source == self.rank:
                    transfer = self.send(torch.ones(1, device=self.device), target, value)
                else:
                    transfer = self.receive(spec, source, value)
                transfer.wait(deadline_s)
        for name in sorted(self.communicators):
            collective, tensor = Collective("gather", 0, name), torch.ones(1, device=self.device)
            with naming("uses", name, [self.communicators[name]]):
                self.enter(collective, tensor, spec, value).wait(deadline_s)

    def close(self) -> None:
        """Destroy the groups; nothing may be under way."""
        channels = (group for several in self.channels.values() for group in several)
        for group in (*channels, *self.communicators.values(), *self.sharers.values()):
            dist.destroy_process_group(group)


@contextmanager
def naming(
    does: str, name: object, groups: Sequence[int] | Sequence[dist.ProcessGroup]
) -> Iterator[None]:
    """Name the process and the group in the error of what did not come. `groups`: or processes."""
    try:
        yield
    except RuntimeError as error:
        ranks = [
            [member] if isinstance(member, int) else dist.get_process_group_ranks(member)
            for member in groups
        ]
        processes = ", ".join(map(str, dict.fromkeys(process for row in ranks for process in row)))
        raise PeerLostError(
            f"process {dist.get_rank()} {does} the group {name!r} of processes {processes}: "
            f"{str(error).splitlines()[0]}"
        ) from error


def make_groups(
    pipelines: Sequence[Sequence[int]],
    channels: Sequence[Channel],
    communicators: Mapping[str, Sequence[int]],
    device: torch.device,
    deadline_s: float,
    sharers: Sequence[tuple[int, ...]] = (),
) -> Groups:
    """Return this process' groups; all processes of the job must call this alike.

    `pipelines`: the global ranks of every pipeline, one for each data-parallel index and lane.
    `communicators`: the pipeline's ranks on each. `sharers`: the sets of its ranks that have
    parameters in common. Ranks of one communicator or set are in the same lanes.
    """
    if "sort_ranks" not in inspect.signature(dist.new_group).parameters:
        raise RuntimeError(
            f"a pipeline needs torch 2.12 or newer, this is {torch.__version__}: update torch"
        )
    refuse_one_connection(device)
    timeout = timedelta(seconds=deadline_s)
    cuda = device.type == "cuda"
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True) if cuda else None
    this_process, first = dist.get_rank(), first_pipelines(pipelines)
    if this_process not in first:
        raise ValueError(f"process {this_process} is in none of the pipelines {pipelines}")
    rank = list(pipelines[first[this_process]]).index(this_process)

    def groups(named: Mapping[T, Sequence[int]]) -> dict[T, list[dist.ProcessGroup]]:
        """Return the groups that this process is in, by name; `named`: the ranks of each."""
        by_name = {n: list[dist.ProcessGroup]() for n, members in named.items() if rank in members}
        # torch wants every process to make every group, those of other pipelines too, in one order.
        for number, ranks in enumerate(pipelines):
            for name, members in named.items():
                processes = [ranks[member] for member in members]
                # The last one, who receives on a channel, has the group in its first lane.
                if first[processes[-1]] == number:
                    with naming("makes", name, processes):
                        group: dist.ProcessGroup = dist.new_group(
                            processes, timeout, pg_options=options, sort_ranks=False
                        )
                    if this_process in processes:
                        by_name[name].append(group)
        return by_name

    pairs = groups({pair: pair for pair in channels})
    collective_groups = {name: group for name, (group,) in groups(communicators).items()}
    sets = {ranks: group for ranks, (group,) in groups({row: row for row in sharers}).items()}
    return Groups(rank, device, pairs, collective_groups, sets)


def first_pipelines(pipelines: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return the number of the first pipeline that each process is in.

    >>> first_pipelines([(0, 2), (1, 2)])
    {0: 0, 2: 0, 1: 1}
    """
    firsts: dict[int, int] = {}
    for number, ranks in enumerate(pipelines):
        for process in ranks:
            firsts.setdefault(process, number)
    return firsts
