"""Lets the processes of a job find the balancer of a loader, by a key-value store.

Whoever claims a loader's key first starts its balancer and publishes the address; the others wait
for it. No process takes part in a collective, so any subset may open a loader. The store is the
process group's own, where torch's processes met already.

The key is made of what must be the same for processes to train together: the group, the members of
the topology, the loader's name, a digest of its configuration and data, and how many such loaders
this process opened before. So a process with another configuration has another key, and would
start a balancer of its own that its peers never come to. Each process therefore records what it
has opened, and `find_conflict` tells who can never meet.
"""

import json
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ...balancer.protocol.job_spec import difference
from ...workers.sources.fingerprint import digest
from ..peers.members import shared_host
from ..peers.store import store_of
from ..step.errors import LoaderError
from ..step.ranks import Place, has_process_group

# Who claimed a loader must have published its balancer's address after this long: longer than it
# may take to start one.
DEADLINE_S = 150.0
# Reading a few hundred samples may take longer; whoever does it says so, and is known to be alive.
FOUND_S = 1800.0
POLL_S = 0.02
# Whoever waits for peers longer than this looks if they have opened something else.
DOUBT_PEERS_S = 5.0


@dataclass(frozen=True, slots=True)
class Meeting:
    """The store in which the processes of a loader meet; `label` names the group and its members.

    process: this process' rank in the job.
    """

    store: Any
    label: str
    process: int


@dataclass(frozen=True, slots=True)
class Opened:
    """A loader that a process has opened: its data-parallel rank, and the loader.

    data: a digest of the samples; job: the configuration as JSON; count: how many loaders of the
    same data and configuration the process opened before.
    """

    process: int
    rank: int
    data: str
    job: str
    count: int = 0

    @property
    def loader(self) -> tuple[str, str, int]:
        """The values that must be the same for two processes to meet."""
        return self.data, self.job, self.count

    @property
    def digest(self) -> str:
        """Data and configuration in 16 hex digits."""
        return digest([self.data, self.job])


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that runs a loader's balancer."""

    process: int
    host: str
    pid: int
    pid_space: str

    def __str__(self) -> str:
        return f"process {self.process} (host {self.host}, pid {self.pid})"

    def has_ended(self) -> bool:
        """Return whether it is known to have ended: it ran on this machine and is gone."""
        if not self.pid_space or self.pid_space != shared_host():
            return False
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        return state in "ZX"


def open_meeting(place: Place) -> Meeting:
    """Return where the processes of a loader meet; ValueError without torch.distributed.

    With a topology the processes that share a rank may be in different data-parallel groups, so
    all meet in the default one.
    """
    if not has_process_group():
        raise ValueError(
            "several ranks without torch.distributed cannot find each other: start "
            "`counterpoise balancer` and give balancer='tcp://HOST:PORT' to all"
        )
    store, _, label = store_of(place)
    return Meeting(store, f"counterpoise/shared/{label}", dist.get_rank())


class Rendezvous:
    """One loader's entries in the store."""

    def __init__(self, meeting: Meeting, name: str, rank: int, data: str, job: str) -> None:
        """Record that this process opens a loader; LoaderError if a peer opened it otherwise."""
        self._store = meeting.store
        self._base = f"{meeting.label}/{name}"
        opened = Opened(meeting.process, rank, data, job)
        count = self._add(f"{opened.digest}/opened by {opened.process}") - 1
        self._mine = Opened(opened.process, rank, data, job, count)
        self._key = f"{opened.digest}/{count}"
        self._entries: dict[int, Opened] = {}
        self._check_at = time.monotonic() + DOUBT_PEERS_S
        self.owner: Owner | None = None
        self._socket: Path | None = None  # a peer's balancer's, which is there as long as that is
        self._set(f"opened/{self._add('opened')}", asdict(self._mine))
        if reason := find_conflict(self._mine, self._read_opened(), is_waiting=False):
            raise LoaderError(reason)

    def claim(self) -> bool:
        """Return True if this process is to start the balancer, and must `publish` it."""
        if self._add(f"{self._key}/claims") > 1:
            return False
        me = Owner(self._mine.process, socket.gethostname(), os.getpid(), shared_host())
        self._set(f"{self._key}/owner", asdict(me))
        return True

    def publish(self, endpoint: str) -> None:
        """Give the others the balancer's address."""
        self._set(f"{self._key}/address", {"endpoint": endpoint})

    def give_up(self, reason: str, task: str = "start its processes") -> None:
        """Tell the others that this process takes no part, and why: it could not do its task."""
        failed = {"process": self._mine.process, "reason": reason, "task": task}
        self._set(f"{self._key}/failed", failed)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Tell the others why this process cannot start its own, if it cannot."""
        try:
            yield
        except Exception as error:
            self.give_up(str(error))
            if isinstance(error, RuntimeError):  # as if it had come after they were ready
                raise LoaderError(str(error)) from error
            raise

    def share_found(self, found: Mapping[str, Any]) -> None:
        """Give the others what this process has found out for all."""
        self._set(f"{self._key}/found", found)

    def wait_for_found(self, deadline_s: float = FOUND_S) -> Any:
        """Return what the peer that claimed it has found; LoaderError if it cannot, or has died."""
        self._wait_for("found", "found out what samples cost", deadline_s)
        return self._get(f"{self._key}/found")

    def wait_for_address(self, deadline_s: float = DEADLINE_S) -> str:
        """Return the address of the balancer that a peer starts.

        Raises LoaderError if the peer cannot, has died, or is on another host.
        """
        self._wait_for("address", "started its balancer", deadline_s)
        return self._checked(self._get(f"{self._key}/address"))

    def why_apart(self) -> str:
        """Return why the peers that this loader waits for will never come, "" while they may.

        Asked while the loader waits; looks into the store now and then.
        """
        # First: the owner may have ended because another cannot go on.
        if reason := self._why_given_up():
            return reason
        if self.owner is not None and self.owner.has_ended():
            return f"{self.owner}, which ran the balancer, has ended: {_RESTART}"
        if self._socket is not None and not self._socket.exists():
            return (
                f"{self.owner}, which ran the balancer, has closed its loader and waited for this "
                "process as long as it may: keep the loader open until all processes are done, or "
                "start `counterpoise balancer` and give its address as balancer='tcp://HOST:PORT'"
            )
        if time.monotonic() < self._check_at:
            return ""
        self._check_at = time.monotonic() + DOUBT_PEERS_S
        return find_conflict(self._mine, self._read_opened(), is_waiting=True)

    def _wait_for(self, what: str, task: str, deadline_s: float) -> None:
        """Wait until a peer has published something; LoaderError if it never will."""
        until = time.monotonic() + deadline_s
        while not self._has(f"{self._key}/{what}"):
            if reason := self._why_given_up():
                raise LoaderError(reason)
            if self.owner is None and self._has(f"{self._key}/owner"):
                self.owner = Owner(**self._get(f"{self._key}/owner"))
            if self.owner is not None and self.owner.has_ended():
                raise LoaderError(f"{self.owner} ended while it {task}: {_RESTART}")
            if time.monotonic() > until:
                owner = self.owner or "a process"
                raise LoaderError(
                    f"{owner} claimed this loader and has not {task} within {deadline_s:.0f} s, "
                    f"is it alive? {_RESTART}"
                )
            time.sleep(POLL_S)

    def _checked(self, found: Mapping[str, str]) -> str:
        """Return the address, if it can be reached from here."""
        owner = self.owner = Owner(**self._get(f"{self._key}/owner"))
        endpoint = found["endpoint"]
        if owner.host != socket.gethostname():
            raise LoaderError(
                f"the balancer is on host {owner.host} (process {owner.process}), this process on "
                f"{socket.gethostname()}: start `counterpoise balancer` and give its address as "
                "balancer='tcp://HOST:PORT'"
            )
        self._socket = Path(endpoint.removeprefix("ipc://"))
        if owner.has_ended() or not self._socket.exists():
            raise LoaderError(
                self._why_given_up()
                or f"{owner} has ended the balancer of this loader already: open the loader before "
                "the others close theirs, or restart all ranks"
            )
        return endpoint

    def _why_given_up(self) -> str:
        """Return why a peer takes no part, "" if none has said so."""
        if not self._has(f"{self._key}/failed"):
            return ""
        failed = self._get(f"{self._key}/failed")
        return f"process {failed['process']} could not {failed['task']}: {failed['reason']}"

    def _read_opened(self) -> Iterable[Opened]:
        """Return what all processes have opened, as far as it has been recorded."""
        for number in range(1, self._add("opened", 0) + 1):
            if number not in self._entries and self._has(f"opened/{number}"):
                self._entries[number] = Opened(**self._get(f"opened/{number}"))
        return self._entries.values()

    def _add(self, key: str, amount: int = 1) -> int:
        return int(self._store.add(f"{self._base}/{key}", amount))

    def _has(self, key: str) -> bool:
        return bool(self._store.check([f"{self._base}/{key}"]))

    def _set(self, key: str, value: Mapping[str, Any]) -> None:
        self._store.set(f"{self._base}/{key}", json.dumps(value))

    def _get(self, key: str) -> Any:
        return json.loads(self._store.get(f"{self._base}/{key}"))


_RESTART = (
    "restart all ranks, or start `counterpoise balancer` and give its address as "
    "balancer='tcp://HOST:PORT'"
)


def find_conflict(mine: Opened, entries: Iterable[Opened], is_waiting: bool) -> str:
    """Return why a process and a peer, which opened different loaders, can never meet; else "".

    A process that shares our rank should train on the same batches: over the same data it may not
    have another configuration. A process of another rank is missed only by who `is_waiting`, and
    if ours is missed there as well. Loaders that both have opened say nothing.

    >>> mine, other = Opened(0, 0, "data", "{}"), Opened(1, 1, "data", '{"shuffle": false}')
    >>> find_conflict(mine, [mine, other], is_waiting=False)
    ''
    >>> find_conflict(mine, [mine, other], is_waiting=True).partition(":")[0]
    'process 1 opened this loader with another configuration'
    """
    known = list(entries)
    for other in known:
        is_peer = other.process != mine.process and other.loader != mine.loader
        met = _has_opened(known, mine.process, other) or _has_opened(known, other.process, mine)
        if not is_peer or met:
            continue
        if other.rank == mine.rank:
            is_apart = other.data == mine.data
        else:
            # Ranks may open several loaders in different orders: only who is missing a rank, and is
            # missed by it in turn, has surely met with another configuration of the same loader.
            is_apart = is_waiting and not _has_rank(known, other.rank, mine)
            is_apart = is_apart and not _has_rank(known, mine.rank, other)
        if is_apart:
            return _describe(mine, other)
    return ""


def _has_opened(known: Iterable[Opened], process: int, which: Opened) -> bool:
    return any(each.process == process and each.loader == which.loader for each in known)


def _has_rank(known: Iterable[Opened], rank: int, which: Opened) -> bool:
    return any(each.rank == rank and each.loader == which.loader for each in known)


def _describe(mine: Opened, other: Opened) -> str:
    if mine.job == other.job:
        differ = "other data" if mine.data != other.data else "other times"
        return (
            f"this process opened a loader, and process {other.process} one over {differ}, so they "
            "wait for each other: open the same loaders in the same order"
        )
    return (
        f"process {other.process} opened this loader with another configuration: "
        f"{difference(mine.job, other.job)}: give all processes the same arguments, or a name= to "
        "each of several loaders that not all processes open"
    )
