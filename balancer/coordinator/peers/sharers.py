"""Processes that share a rank: all get its microbatches, each at its own pace.

Tensor, context and pipeline ranks of one data-parallel index train on the same samples. They play
the same rank, and each has a number of its own. An encoder's process may play several ranks, each
of which others share. A process counts from the moment when it starts the run: from then on a
microbatch is kept until it has acknowledged it, and no other process of the rank may be further
ahead of it than it prefetches. One that cannot be reached goes on counting while it may come back.
"""

import math

import msgspec

from ..delivery.step import Position
from ..delivery.tracker import BEYOND
from .records import RankPeer

# What is needed of a run in which no process of a rank counts.
NOTHING: Position = (BEYOND, 0)


class LostSharer(msgspec.Struct):
    """A process that counted and cannot be reached, since `since`.

    probed_at: when it was sent something last; unreachable_at: when that was reported to be in
    vain.
    """

    rank: RankPeer
    since: float
    unreachable_at: float
    probed_at: float = -math.inf


class Sharers:
    """The trainer processes by the ranks that they play, and those that were lost."""

    def __init__(self) -> None:
        self._of_rank: dict[int, dict[bytes, RankPeer]] = {}
        self.lost: dict[bytes, LostSharer] = {}

    def add(self, rank: RankPeer) -> None:
        """Add a process; the one that it replaces, if that was lost, is forgotten."""
        for number in rank.hello.ranks:
            self._of_rank.setdefault(number, {})[rank.peer] = rank
        for peer, lost in list(self.lost.items()):
            if peer == rank.peer or lost.rank.has_seat_of(rank.hello):
                del self.lost[peer]

    def remove(self, rank: RankPeer) -> None:
        """Remove a process."""
        for number in rank.hello.ranks:
            of_rank = self._of_rank.get(number, {})
            of_rank.pop(rank.peer, None)
            if not of_rank:
                self._of_rank.pop(number, None)

    def absent(self, ranks: int) -> tuple[int, ...]:
        """Return those of the ranks below `ranks` that no connected process plays."""
        if len(self._of_rank) >= ranks:
            return ()
        return tuple(number for number in range(ranks) if number not in self._of_rank)

    def is_alone(self, number: int) -> bool:
        """Return whether a rank has one process at most, and none was lost."""
        return not self.lost and len(self._of_rank.get(number, ())) < 2

    def others(self, rank: RankPeer) -> list[RankPeer]:
        """Return the processes that count and share a rank with this one, in the same run."""
        mates = {
            each.peer: each
            for number in rank.hello.ranks
            for each in self._of_rank.get(number, {}).values()
        }
        others = [each for each in mates.values() if each.peer != rank.peer]
        return [each for each in others if rank.started and each.run == rank.run]

    def of_run(self, number: int, run: int) -> list[RankPeer]:
        """Return the processes of a rank that count in a run, those that were lost included."""
        counting = [*self._of_rank.get(number, {}).values()]
        if self.lost:
            counting += [e.rank for e in self.lost.values() if number in e.rank.hello.ranks]
        return [rank for rank in counting if rank.started and rank.run == run]

    def needed(self, number: int, run: int) -> Position:
        """Return the first microbatch of a run that some process of a rank may still need."""
        counting = self.of_run(number, run)
        return min((each.reached(number) for each in counting), default=NOTHING)

    def why_held_back(self, rank: RankPeer, number: int, step: int) -> RankPeer | None:
        """Return the slowest process that a step of a rank has to wait for, None if it need not."""
        if self.is_alone(number):
            return None
        others = [each for each in self.of_run(number, rank.run) if each.peer != rank.peer]
        if not others:
            return None
        slowest = min(others, key=lambda each: each.reached(number))
        return slowest if step >= slowest.reached(number)[0] + rank.hello.ahead else None

    def waiting_for(self, number: int, position: Position, run: int) -> set[bytes]:
        """Return the connected processes of a rank that have not acknowledged a microbatch."""
        return {
            each.peer
            for each in self.of_run(number, run)
            if each.peer not in self.lost and each.reached(number) <= position
        }
