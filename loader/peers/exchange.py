"""Defines what the ranks of a loader do once they have met.

A key is posted and gathered once by each rank. All ranks use keys in the same
order, several of which may be under way. Nothing here blocks for a peer and there is no thread:
things move on when a rank calls `post`, `gather` or `poll`. As the leader of a host passes on what
its followers post, a rank that has nothing to ask for still calls `poll` several times a second.
"""

from abc import ABC, abstractmethod

from .members import CLOSED, ENDED, Peer, Roster

# What is late by so much is told to others; who has not been heard for so long is suspected.
TELL_S, SILENT_S = 1.0, 4.0
# A blocked request to the store is worth telling from here on.
STORE_S = 2.0


class Peers(ABC):
    """The ranks of a loader that have met. One thread at a time may use it.

    is_planner: True for one rank of each host, whose `publish` the others of the host can map.
    """

    is_planner: bool

    def __init__(self, roster: Roster, rank: int) -> None:
        self.members: tuple[Peer, ...] = roster.peers
        self.rank = rank
        self._roster = roster

    @property
    def ranks(self) -> int:
        """Data-parallel ranks of the loader."""
        return len(self.members)

    @property
    def shares_host(self) -> bool:
        """True if there are other ranks on this host whose memory can be shared."""
        return len(self._roster.hosts[self._roster.host_of(self.rank)]) > 1

    @abstractmethod
    def post(self, key: str, value: bytes) -> None:
        """Give the others this rank's value for a key. ValueError if it was given before."""

    @abstractmethod
    def gather(self, key: str) -> tuple[bytes, ...] | None:
        """Return all ranks' values for a key, in their order, and forget them; None until then.

        LoaderError if they can never be had: the store is lost.
        """

    @abstractmethod
    def end(self, group: str) -> None:
        """Say that this rank uses no key of a group, "GROUP/...", any more.

        For keys that not all ranks will post, as those of an epoch that is left early. All ranks
        end a group, each when it has what it needs; then nothing of it is left.
        """

    @abstractmethod
    def poll(self) -> None:
        """Do what can be done for others. LoaderError if the store is lost."""

    @abstractmethod
    def pause_s(self) -> float:
        """Return how long it makes sense to wait before the next `gather` or `poll`."""

    @abstractmethod
    def why_missing(self, key: str) -> str:
        """Return which ranks have not posted a key, as far as is known; "" if none is missing.

        It asks nobody, and may be called while another thread waits for the store.
        """

    def why_lost(self, key: str) -> str:
        """Return why a key will never be complete, as far as is known; "" while it may be."""
        missing = self.why_missing(key)
        return missing if ENDED in missing or CLOSED in missing else ""

    def planner_now(self) -> str:
        """Return which rank plans for this one, and how it is; "" if this one does."""
        return ""

    @abstractmethod
    def publish(self, key: str, value: bytes) -> None:
        """Let the other ranks of this host map a value; ValueError if not this rank does that."""

    @abstractmethod
    def published(self, key: str) -> memoryview | None:
        """Return what the planner of this host published, mapped; None if it has not (yet).

        The memory is kept as long as the view is. Each rank may map a key once. LoaderError if the
        planner could not go on; ValueError if this rank is the planner.
        """

    @abstractmethod
    def planner_ended(self) -> bool:
        """Return True if the planner of this host has ended or closed: nothing more will come."""

    @abstractmethod
    def close(self) -> None:
        """Take part no more. What this rank has posted stays for who still gathers it."""

    def _silent_store(self, since: float, now: float) -> str:
        """Return that the store does not answer, if a request waits for long; "" else."""
        if not since or now - since < STORE_S:
            return ""
        return (
            f"the store of the process group, which has not answered for {now - since:.0f} s: "
            f"{self._store_owner} runs it, unless a launcher does"
        )

    @property
    def _store_owner(self) -> str:
        return next((str(peer) for peer in self.members if peer.process == 0), "process 0")
