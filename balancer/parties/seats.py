"""The trainer processes of a job, and the seats that they have: (rank, number among its sharers).

A trainer is restarted as a whole, but its processes come one by one, and the end of those before
may be noticed late. So a newcomer waits at the seats of others until these are known to be gone, or
have shown that they are here.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from ..protocol.job_spec import difference
from ..protocol.parts import EpochPosition
from .messages import MAX_NAME, BeginRun, JoinJob, RunStops

# What a process that has a newcomer's seat sends later than this after that shows that it is here:
# what it sent before may come late.
LATE_S = 1.0
# Of one that is silent, and still has its seat so long after that, it is known, too: to a host that
# has gone the kernel would have ended the connection (transport/sockets.py).
ENDED_S = 35.0
# A newcomer that has waited for so long waits anew, or has gone.
WAITING_S = 60.0
# Characters of a difference that a refusal quotes.
MAX_QUOTED = 1000


class RunKey(NamedTuple):
    """What must be the same of all processes in a run."""

    run: int
    epoch: int
    at: EpochPosition
    costs: str


@dataclass(slots=True, eq=False)
class TrainerPeer:
    """A process that has joined.

    heard_at: when it last said something; seen_at: when it was last known to be here; is_reached:
    what was last sent to it could be sent. begun: None, too, while it is to say again where it
    stands. is_new: it has begun nothing. stopped: why its run was stopped, repeated until it begins
    another. known_tokens: of workers of which it knows where they are. For diagnostics: waited_ms
    for microbatches, in all; moved_at: when it last began a run, or had a microbatch more;
    asked_at: when it last asked what it waits for.
    """

    peer: bytes
    hello: JoinJob
    heard_at: float
    seen_at: float
    begun: BeginRun | None = None
    is_new: bool = True
    stopped: RunStops | None = None
    known_tokens: set[int] = field(default_factory=set)
    is_reached: bool = True
    waited_ms: int = 0
    moved_at: float = 0.0
    asked_at: float = -math.inf

    @property
    def name(self) -> str:
        """Its name for messages."""
        return self.hello.title

    @property
    def key(self) -> RunKey | None:
        """What it has begun."""
        begun = self.begun
        return None if begun is None else RunKey(begun.run, begun.epoch, begun.at, begun.costs)


@dataclass(slots=True)
class Seats:
    """The seats of a job of so many ranks, each of which as many processes share.

    gone: the names of processes that had a seat which is free now.
    """

    ranks: int
    peers: dict[bytes, TrainerPeer] = field(default_factory=dict)
    gone: dict[tuple[int, int], str] = field(default_factory=dict)
    # Who has a seat, and since when newcomers wait for seats.
    _holders: dict[tuple[int, int], TrainerPeer] = field(default_factory=dict)
    _waiting: dict[bytes, float] = field(default_factory=dict)

    @property
    def ranks_here(self) -> set[int]:
        """The ranks of which some process is here."""
        return {rank for rank, _ in self._holders}

    @property
    def first(self) -> TrainerPeer | None:
        """The process that came first: it has brought the same as all."""
        return next(iter(self.peers.values()), None)

    @property
    def is_full(self) -> bool:
        """True if every seat of every rank is taken."""
        first = self.first
        return first is not None and len(self._holders) == self.ranks * first.hello.sharers

    def add(self, peer: TrainerPeer) -> None:
        """Seat a process; its seats are free."""
        self.peers[peer.peer] = peer
        self._waiting.pop(peer.peer, None)
        for rank in peer.hello.ranks:
            self._holders[rank, peer.hello.sharer] = peer
            self.gone.pop((rank, peer.hello.sharer), None)

    def remove(self, peer: TrainerPeer) -> None:
        """Free the seats of a process; with the last one all is forgotten."""
        del self.peers[peer.peer]
        for rank in peer.hello.ranks:
            self.gone[rank, peer.hello.sharer] = peer.name
            del self._holders[rank, peer.hello.sharer]
        if not self.peers:
            self.gone.clear()

    def find_holders(self, hello: JoinJob) -> list[TrainerPeer]:
        """Return those at a newcomer's seats."""
        seated = (self._holders.get((rank, hello.sharer)) for rank in hello.ranks)
        return [*dict.fromkeys(peer for peer in seated if peer is not None)]

    def may_sit(self, peer: bytes, hello: JoinJob, now: float) -> bool | str:
        """Return whether a newcomer may be seated; False: it has to wait. Or why never, as text."""
        ranks, sharers, reason = hello.ranks, hello.sharers, self._describe_difference(hello)
        if hello.sharer >= sharers:
            return f"sharer {hello.sharer} is not among the {sharers} from 0 on that share a rank"
        are_ranks = 0 < len({*ranks}) == len(ranks) and max(ranks) < self.ranks
        if not (are_ranks or reason):
            return f"ranks {ranks!s:.{MAX_NAME}} are not among the job's {self.ranks}"
        # Of another job all that are here are in its way: the first stands for them.
        holder = next(iter(self.find_holders(hello)), self.first if reason else None)
        if holder is None:
            return True
        since = self._waiting.setdefault(peer, now)
        if holder.heard_at <= since + LATE_S and now < since + ENDED_S:
            return False
        del self._waiting[peer]
        return reason or (
            f"{holder.name} plays rank {min({*holder.hello.ranks} & {*ranks})} of this job "
            f"already, and goes on; the newcomer is {hello.title}: end the first one, or give the "
            "second a job of its own (Balancer(job=NAME)); if both are to get the same samples, "
            "give ranks= a mesh"
        )

    def _describe_difference(self, hello: JoinJob) -> str:
        if (first := self.first) is None:
            return ""
        pairs = ((first.hello.job, hello.job), (first.hello.layout, hello.layout))
        if differ := "; ".join(difference(*pair) for pair in pairs if pair[0] != pair[1]):
            return f"this balancer serves another job, that of {first.name}: {differ:.{MAX_QUOTED}}"
        if hello.sharers != first.hello.sharers:
            return (
                f"{first.hello.sharers} processes share a rank as {first.name} says, and "
                f"{hello.sharers} as {hello.title} does: give all the same ranks="
            )
        return ""

    def missing(self) -> str:
        """Return which seats are free, as text."""
        if names := [*dict.fromkeys(self.gone.values())]:
            return f"{', '.join(names[:4])}{' and others' * (len(names) > 4)}, gone"
        sharers = 1 if self.first is None else self.first.hello.sharers
        seated = Counter(rank for rank, _ in self._holders)
        short = format_ranks(rank for rank in range(self.ranks) if seated[rank] < sharers)
        return f"ranks {short:.{MAX_NAME}}"

    def forget_waiting(self, now: float) -> None:
        """Forget newcomers that have waited for long."""
        waiting = self._waiting.items()
        self._waiting = {peer: since for peer, since in waiting if now < since + WAITING_S}

    @property
    def has_newcomers(self) -> bool:
        """Return whether newcomers wait until it is known who is here, or did a while ago."""
        return bool(self._waiting)

    def silent(self, since: float) -> list[TrainerPeer]:
        """Return the processes that were not known to be here since a time."""
        return [peer for peer in self.peers.values() if peer.seen_at < since]


def format_ranks(ranks: Iterable[int]) -> str:
    """Return ranks as text.

    >>> format_ranks((0, 1, 2, 3, 6))
    '0-3, 6'
    """
    numbered = groupby(enumerate(sorted(ranks)), key=lambda pair: pair[1] - pair[0])
    spans = [[rank for _, rank in span] for _, span in numbered]  # of ranks in a row
    return ", ".join(f"{span[0]}-{span[-1]}" if span[1:] else f"{span[0]}" for span in spans)
