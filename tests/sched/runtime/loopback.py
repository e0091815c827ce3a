"""All ranks in one process: channels and collectives that are lists.

The ranks are generators (`execution.walk`) that stop where they would wait; `Loopback.run` resumes
them in an order of the caller's choice until all have ended. Messages carry the value that they are
about, so two ends that disagree are an error here and not a wrong number.
"""

from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from counterpoise.sched.runtime.compiled import Collective, Value
from counterpoise.sched.runtime.links.process_groups import Transfer
from counterpoise.sched.runtime.parts import TensorSpec


class Deadlock(RuntimeError):  # noqa: N818
    """All ranks wait for each other."""


@dataclass(slots=True)
class _Cell:
    """The shared state of one transfer: contributions by rank, and the ranks that have come."""

    value: Value
    arrived: set[int] = field(default_factory=set)
    given: dict[int, Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class _Shared:
    """A transfer of the loopback, as one rank sees it: done once the ranks it waits for came."""

    cell: _Cell
    needs: frozenset[int]
    read: Callable[[dict[int, Tensor]], Tensor | None]

    def done(self) -> bool:
        """Return whether everyone that this end waits for has come."""
        return self.needs <= self.cell.arrived

    def wait(self, deadline_s: float) -> Tensor | None:
        """Return what arrived; nothing changes while one waits in one process."""
        if not self.done():
            raise TimeoutError(f"{self.cell.value} did not come within {deadline_s} s")
        return self.read(self.cell.given)

    def watched(self) -> "_Shared":
        """Return the transfer, which says by itself when it is over."""
        return self


class Loopback:
    """The links of all ranks of a pipeline in one process.

    `rendezvous`: whether a send ends only when its receive is posted, as large ones do.
    """

    def __init__(self, ranks: int, *, rendezvous: bool = True) -> None:
        self.ranks = ranks
        self.rendezvous = rendezvous
        self._channels: dict[tuple[int, int], list[_Cell]] = defaultdict(list)
        self._collectives: dict[str, list[_Cell]] = defaultdict(list)
        self._counts: dict[object, int] = defaultdict(int)

    def links(self, rank: int) -> "_RankLinks":
        """Return one rank's links."""
        return _RankLinks(self, rank)

    def run(
        self,
        walks: Sequence[Generator[Transfer, Tensor | None, None]],
        choose: Callable[[list[int]], int] = min,
    ) -> None:
        """Run all ranks' walks to their ends.

        `choose`: which of the ranks that can go on does. Raises Deadlock if none can.
        """
        waiting: dict[int, Transfer] = {}
        for rank, walk in enumerate(walks):
            _resume(walk, rank, waiting, None)
        while waiting:
            ready = [rank for rank, transfer in waiting.items() if transfer.done()]
            if not ready:
                raise Deadlock(f"ranks {sorted(waiting)} wait for each other")
            rank = choose(ready)
            _resume(walks[rank], rank, waiting, waiting.pop(rank).wait(0.0))

    def join_transfer(self, where: object, who: int, value: Value, cells: list[_Cell]) -> _Cell:
        """Return the cell of the next transfer of a rank on a channel or communicator."""
        number = self._counts[where, who]
        self._counts[where, who] += 1
        if number == len(cells):
            cells.append(_Cell(value))
        cell = cells[number]
        if (cell.value.name, cell.value.microbatch) != (value.name, value.microbatch):
            raise Deadlock(f"{where}: {value} meets {cell.value}")
        cell.arrived.add(who)
        return cell

    def channel(self, source: int, target: int) -> list[_Cell]:
        """Return the messages of a channel so far."""
        return self._channels[source, target]

    def collectives(self, communicator: str) -> list[_Cell]:
        """Return the collectives of a communicator so far."""
        return self._collectives[communicator]


def _resume(
    walk: Generator[Transfer, Tensor | None, None],
    rank: int,
    waiting: dict[int, Transfer],
    arrived: Tensor | None,
) -> None:
    try:
        waiting[rank] = walk.send(arrived)
    except StopIteration:
        return


def _nothing(given: dict[int, Tensor]) -> None:
    """Return what a rank gets that only gives."""
    del given


@dataclass(frozen=True, slots=True)
class _RankLinks:
    """The links of one rank."""

    loop: Loopback
    rank: int

    def send(self, tensor: Tensor, target: int, value: Value) -> Transfer:
        """Put a message on a channel."""
        where = (self.rank, target)
        cell = self.loop.join_transfer(where, self.rank, value, self.loop.channel(*where))
        cell.given[self.rank] = tensor
        needs = frozenset({target} if self.loop.rendezvous else ())
        return _Shared(cell, needs, _nothing)

    def receive(self, spec: TensorSpec, source: int, value: Value) -> Transfer:
        """Take the channel's next message. Raises RuntimeError if it has another size."""

        def read_message(given: dict[int, Tensor]) -> Tensor:
            tensor = given[source]
            if tuple(tensor.shape) != spec.shape or tensor.dtype != spec.dtype:
                raise RuntimeError(f"{value} is {tuple(tensor.shape)}, the plan says {spec.shape}")
            return tensor.clone()

        where = (source, self.rank)
        cell = self.loop.join_transfer(where, self.rank, value, self.loop.channel(*where))
        return _Shared(cell, frozenset({source}), read_message)

    def enter(
        self, collective: Collective, tensor: Tensor | None, spec: TensorSpec, value: Value
    ) -> Transfer:
        """Enter a collective; what is broadcast says its size itself."""
        del spec
        cells = self.loop.collectives(collective.communicator)
        cell = self.loop.join_transfer(collective.communicator, self.rank, value, cells)
        if tensor is not None:
            cell.given[self.rank] = tensor
        everyone = frozenset(range(self.loop.ranks))
        if collective.operation == "broadcast":
            return _Shared(cell, frozenset({collective.root}), lambda g: g[collective.root].clone())
        if collective.operation == "gather":
            return _Shared(cell, everyone, lambda g: torch.stack([g[r] for r in sorted(g)]))
        if self.rank != collective.root:
            return _Shared(cell, frozenset(), _nothing)
        return _Shared(cell, everyone, lambda g: torch.stack([g[r] for r in sorted(g)]).sum(0))
