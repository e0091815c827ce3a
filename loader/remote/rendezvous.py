"""Lets processes that share ranks find the balancer of a loader, by the group's key-value store.

Whoever claims a loader first starts its balancer and publishes the address; the others wait for it.
Loaders are told apart as in loader/peers: by their name, and by how many of that name a process
opened before. What they are made of must be the same; who differs from the one that claimed it says
so, here and to all others.
"""

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ..peers.joining import describe_difference
from ..peers.members import Process, shared_host
from ..peers.store import store_of
from ..step.errors import LoaderError
from ..step.ranks import Place, has_process_group

# Who claimed a loader must have published its balancer's address after this long: longer than it
# may take to start one.
DEADLINE_S = 150.0
# Reading a few hundred samples may take longer; whoever does it says so, and is known to be alive.
FOUND_S = 1800.0
POLL_S = 0.02
_RESTART = (
    "restart all ranks, or start `counterpoise balancer` and give its address as "
    "balancer='tcp://HOST:PORT'"
)


@dataclass(frozen=True, slots=True)
class Meeting:
    """The store in which the processes of a loader meet; `label` names the group and its members.

    process: this process' rank in the job.
    """

    store: Any
    label: str
    process: int


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that runs a loader's balancer; shared: see shared_host, facts: see Rendezvous."""

    process: int
    host: str
    pid: int
    shared: str
    facts: Mapping[str, str]

    def __str__(self) -> str:
        return f"process {self.process} (host {self.host}, pid {self.pid})"

    def has_ended(self) -> bool:
        """Return whether it is known to have ended: it ran on this machine and is gone."""
        if not self.shared or self.shared != shared_host():
            return False
        try:
            process = Process(self.pid)
        except OSError:
            return True
        has_ended = process.has_ended()
        process.close()
        return has_ended


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
    """One loader's entries in the store; owner: who claimed it, None where that is this process."""

    def __init__(self, meeting: Meeting, name: str, facts: Mapping[str, str]) -> None:
        """`facts`: what all must bring alike, by name: JSON objects or other texts."""
        self._store, self._process = meeting.store, meeting.process
        self._name, self._facts = name, dict(facts)
        base = f"{meeting.label}/{name}"
        count = int(self._store.add(f"{base}/opened by {meeting.process}", 1))
        self._key = f"{base}/{count}"
        self.owner: Owner | None = None
        self._socket: Path | None = None  # a peer's balancer's, which is there as long as that is

    def claim(self) -> bool:
        """Return True if this process is to start the balancer, and must `publish` it.

        Raises LoaderError if the process that has claimed it has brought other facts.
        """
        if int(self._store.add(f"{self._key}/claims", 1)) == 1:
            me = Owner(self._process, socket.gethostname(), os.getpid(), shared_host(), self._facts)
            self._set("owner", asdict(me))
            return True
        self._wait_for("owner", "begun", DEADLINE_S)
        self.owner = Owner(**self._get("owner"))
        for fact, text in self._facts.items():
            if (theirs := self.owner.facts.get(fact)) != text:
                reason = (
                    f"{self.owner} opened loader {self._name!r} with another {fact} than process "
                    f"{self._process}: {describe_difference(text, theirs)}: give all processes the "
                    "same, in the same order, or a name= to each of several loaders"
                )
                self.give_up(reason, "open the same loader")
                raise LoaderError(reason)
        return False

    def publish(self, endpoint: str) -> None:
        """Give the others the balancer's address."""
        self._set("address", {"endpoint": endpoint})

    def give_up(self, reason: str, task: str = "start its processes") -> None:
        """Tell the others that this process takes no part, and why: it could not do its task."""
        self._set("failed", {"process": self._process, "reason": reason, "task": task})

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
        self._set("found", found)

    def wait_for_found(self, deadline_s: float = FOUND_S) -> Any:
        """Return what the peer that claimed it has found; LoaderError if it cannot, or has died."""
        self._wait_for("found", "found out what samples cost", deadline_s)
        return self._get("found")

    def wait_for_address(self, deadline_s: float = DEADLINE_S) -> str:
        """Return the address of the balancer that a peer starts.

        Raises LoaderError if the peer cannot, has died, or is on another host.
        """
        self._wait_for("address", "started its balancer", deadline_s)
        endpoint: str = self._get("address")["endpoint"]
        if self.owner is not None and self.owner.host != socket.gethostname():
            raise LoaderError(
                f"the balancer is on host {self.owner.host} (process {self.owner.process}), this "
                f"process on {socket.gethostname()}: start `counterpoise balancer` and give its "
                "address as balancer='tcp://HOST:PORT'"
            )
        self._socket = Path(endpoint.removeprefix("ipc://"))
        if reason := self.why_apart():
            raise LoaderError(reason)
        return endpoint

    def why_apart(self) -> str:
        """Return why this loader's balancer or peers will never come, "" while they may."""
        # First: the owner may have ended because another cannot go on.
        if self._has("failed"):
            failed = self._get("failed")
            return f"process {failed['process']} could not {failed['task']}: {failed['reason']}"
        if self.owner is not None and self.owner.has_ended():
            return f"{self.owner}, which ran the balancer, has ended: {_RESTART}"
        if self._socket is not None and not self._socket.exists():
            return (
                f"{self.owner}, which ran the balancer, has closed its loader and waited for this "
                "process as long as it may: keep the loader open until all processes are done, or "
                "start `counterpoise balancer` and give its address as balancer='tcp://HOST:PORT'"
            )
        return ""

    def _wait_for(self, what: str, task: str, deadline_s: float) -> None:
        """Wait until a peer has published something; LoaderError if it never will."""
        until = time.monotonic() + deadline_s
        while not self._has(what):
            if reason := self.why_apart():
                raise LoaderError(reason)
            if time.monotonic() > until:
                raise LoaderError(
                    f"{self.owner or 'a process'} claimed this loader and has not {task} within "
                    f"{deadline_s:.0f} s, is it alive? {_RESTART}"
                )
            time.sleep(POLL_S)

    def _has(self, key: str) -> bool:
        return bool(self._store.check([f"{self._key}/{key}"]))

    def _set(self, key: str, value: Mapping[str, Any]) -> None:
        self._store.set(f"{self._key}/{key}", json.dumps(value))

    def _get(self, key: str) -> Any:
        return json.loads(self._store.get(f"{self._key}/{key}"))
