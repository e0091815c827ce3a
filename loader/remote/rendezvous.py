"""Lets processes find what one of them does for all, by the group's key-value store.

The first that claims a loader does it, and publishes the answer; the others wait for it, whenever
each comes, and some may never. So processes that share ranks find the balancer of their host, and
ranks what samples cost. Loaders are told apart as in loader/peers: by their name, and by how many
of that name a process opened before. What they are made of must be the same; who differs from the
one that claimed it says so, here and to all others.
"""

import json
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ..peers.joining import describe_difference
from ..peers.members import ENDED, Peer, this_machine, this_process
from ..peers.store import Entries, MeetingPoint, find_store
from ..step.errors import LoaderError
from ..step.ranks import Place, has_process_group

# Who claimed a loader must have published its balancer's address after this long: longer than it
# may take to start one.
DEADLINE_S = 150.0
POLL_S = 0.02
RUNS_BALANCER = "ran the balancer"
_RESTART = (
    "restart all ranks, or start `counterpoise balancer` and give its address as "
    "balancer='tcp://HOST:PORT'"
)


def open_meeting(place: Place) -> MeetingPoint:
    """Return where the processes of a loader meet; ValueError without torch.distributed.

    With a topology the processes that share a rank may be in different data-parallel groups, so
    all meet in the default one.
    """
    if not has_process_group():
        raise ValueError(
            "several ranks without torch.distributed cannot find each other: start "
            "`counterpoise balancer` and give balancer='tcp://HOST:PORT' to all"
        )
    store, members, label = find_store(place)
    me = members.index(dist.get_rank())
    return MeetingPoint(store, f"counterpoise/shared/{label}", me, members)


class Rendezvous:
    """One loader's entries in the store; owner: who claimed it, None where that is this process."""

    def __init__(
        self, point: MeetingPoint, name: str, facts: Mapping[str, str], role: str = RUNS_BALANCER
    ) -> None:
        """Take part.

        facts: what all must bring alike, by name: JSON objects or other texts. role: what the
        process that claims it does, in the past.
        """
        self._me = this_process(point.rank, point.process, this_machine())
        self._name, self._facts, self._role = name, dict(facts), role
        self._processes = len(point.processes)
        root = Entries(point.store, f"{point.label}/{name}")
        self._entries = root.below(str(root.add(f"opened by {point.process}")))
        self.owner: Peer | None = None
        self._socket: Path | None = None  # a peer's balancer's, which is there as long as that is

    def claim(self) -> bool:
        """Return True if this process is to do it, and must `publish` the answer.

        Raises LoaderError if the process that has claimed it has brought other facts.
        """
        if self._entries.add("claims") == 1:
            self._set("owner", [self._me, self._facts])
            return True
        owner, facts = self._await_entry("owner", "begun", DEADLINE_S)
        self.owner = Peer(*owner)
        for fact, text in self._facts.items():
            if (theirs := facts.get(fact)) != text:
                reason = (
                    f"{self.owner.as_process} opened loader {self._name!r} with another {fact} "
                    f"than process {self._me.process}: {describe_difference(text, theirs)}: give "
                    "all processes the same, in the same order, or a name= to each of several "
                    "loaders"
                )
                self.give_up(reason, "open the same loader")
                raise LoaderError(reason)
        return False

    def publish(self, answer: Any) -> None:
        """Give the others what this process was to do: an address, or what it has found out."""
        self._set("answer", answer)

    def give_up(self, reason: str, task: str = "start its processes") -> None:
        """Tell the others that this process takes no part, and why: it could not do its task."""
        self._set("failed", [self._me.process, task, reason])

    @contextmanager
    def telling(self, task: str = "start its processes") -> Iterator[None]:
        """Tell the others why this process cannot do its task, if it cannot."""
        try:
            yield
        except Exception as error:
            self.give_up(str(error), task)
            raise

    def wait_for_answer(self, task: str, deadline_s: float) -> Any:
        """Return what the peer that claimed it has published; LoaderError if it never will.

        task: what it was to do. If all processes come, the last to know deletes all.
        """
        return self._await_entry("answer", task, deadline_s)

    def forget(self) -> None:
        """Have no more use for the answer; once no process has, nothing is left of it."""
        if self._entries.add("known") == self._processes:
            self._entries.delete("claims", "owner", "answer", "known")

    def wait_for_address(self, deadline_s: float = DEADLINE_S) -> str:
        """Return the address of the balancer that a peer starts.

        Raises LoaderError if the peer cannot, has died, or is on another host.
        """
        endpoint: str = self.wait_for_answer("started its balancer", deadline_s)
        if self.owner is not None and self.owner.host != socket.gethostname():
            raise LoaderError(
                f"the balancer is on host {self.owner.host} (process {self.owner.process}), this "
                f"process on {socket.gethostname()}: start `counterpoise balancer` and give its "
                "address as balancer='tcp://HOST:PORT'"
            )
        self._socket = Path(endpoint.removeprefix("ipc://"))
        if reason := self.explain_absence():
            raise LoaderError(reason)
        return endpoint

    def explain_absence(self) -> str:
        """Return why this loader's balancer or peers will never come, "" while they may."""
        # First: the owner may have ended because another cannot go on.
        if (failed := self._entries.find("failed")) is not None:
            process, task, reason = json.loads(failed)
            return f"process {process} could not {task}: {reason}"
        if self.owner is None:
            return ""
        is_near = self.owner.machine == self._me.machine != ""
        if is_near and self.owner.state() == ENDED:
            return f"{self.owner.as_process}, which {self._role}, has ended: {self._advice}"
        if self._socket is not None and not self._socket.exists():
            return (
                f"{self.owner.as_process}, which ran the balancer, has closed its loader and "
                "waited for this process as long as it may: keep the loader open until all "
                "processes are done, or start `counterpoise balancer` and give its address as "
                "balancer='tcp://HOST:PORT'"
            )
        return ""

    def _await_entry(self, key: str, task: str, deadline_s: float) -> Any:
        """Return what a peer has published, once it has; LoaderError if it never will."""
        until = time.monotonic() + deadline_s
        while (answer := self._entries.find(key)) is None:
            if reason := self.explain_absence():
                raise LoaderError(reason)
            if time.monotonic() > until:
                owner = self.owner.as_process if self.owner else "a process"
                raise LoaderError(
                    f"{owner} claimed this loader and has not {task} within {deadline_s:.0f} s, is "
                    f"it alive? {self._advice}"
                )
            time.sleep(POLL_S)
        return json.loads(answer)

    @property
    def _advice(self) -> str:
        return _RESTART if self._role == RUNS_BALANCER else "restart all ranks"

    def _set(self, key: str, value: Any) -> None:
        self._entries.set(key, json.dumps(value))
