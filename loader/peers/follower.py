"""A rank whose host has another leader: it posts to and reads from that one's memory only."""

import json
import mmap
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..step.errors import LoaderError
from .exchange import SILENT_S, Peers
from .leader import FIRST_S, LATER_S, group_of
from .members import CLOSED, Process, Roster, own_failure
from .records import HostRecord, RecordKind, RecordReader, RecordWriter, unpack_values


class FollowingPeers(Peers):
    """The ranks as one that follows its host's leader sees them."""

    is_planner = False

    def __init__(
        self,
        roster: Roster,
        rank: int,
        log: RecordWriter,
        leader: Process,
        records: RecordReader,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(roster, rank)
        self._log = log
        self._leader = leader
        self._records = records
        self._clock = clock
        # Results stay where they are until they are gathered: a rank may never need them.
        self._results: dict[str, HostRecord] = {}
        self._offers: dict[str, tuple[int, int]] = {}
        self._posted: dict[str, tuple[float, int]] = {}
        self._ended: set[str] = set()
        self._told_read = 0
        self._reasons: dict[str, str] = {}
        self._heard_at = clock()
        self._failed = ""
        self._leader_closed = ""
        # The leader keeps nothing for one that is gone, and nobody waits for it.
        self._leaving: weakref.finalize[..., Any] = weakref.finalize(
            self, _leave, os.getpid(), log, records, leader
        )

    def post(self, key: str, value: bytes) -> None:
        """Give the leader this rank's value."""
        if group_of(key) in self._ended:
            raise ValueError(f"key {key!r} is of a group that this rank has ended")
        if key in self._posted:
            raise ValueError(f"key {key!r} was posted already: each rank posts a key once")
        self._posted[key] = (self._clock(), self._log.append(RecordKind.POST, key, value))
        self.poll()

    def gather(self, key: str) -> tuple[bytes, ...] | None:
        """Return all ranks' values, once."""
        self.poll()
        record = self._results.pop(key, None)
        if record is not None:
            values = unpack_values(self._records.body_of(record))
            self._tell_read()
            return values
        if self._failed:
            raise LoaderError(self._failed)
        return None

    def end(self, group: str) -> None:
        """Use the keys of a group no more."""
        if not self._leaving.alive:
            return
        self.poll()
        self._ended.add(group)
        for key in [key for key in self._offers if group_of(key) == group]:
            del self._offers[key]
            self._log.append(RecordKind.MAPPED, key)
        self._results = {k: each for k, each in self._results.items() if group_of(k) != group}
        self._posted = {k: each for k, each in self._posted.items() if group_of(k) != group}
        self._tell_read()

    def poll(self) -> None:
        """Read what the leader has written."""
        if not self._leaving.alive:
            return
        for record in self._records.read():
            self._hear(record)
        self._tell_read()

    def pause_s(self) -> float:
        """Return a pause that grows with what was waited for the oldest key."""
        waited = self._clock() - min((at for at, _ in self._posted.values()), default=0.0)
        return min(max(FIRST_S, waited / 8), LATER_S)

    def why_missing(self, key: str) -> str:
        """Return which ranks have not posted a key, as the leader knows them."""
        if key in self._results:
            return ""
        now, parts = self._clock(), list[str]()
        if key not in self._posted:
            parts.append(f"{self.members[self.rank]}, which has not posted it")
        state = self._leader_closed or self._leader.state()
        silent = self._silent_store(self._records.asking_since(), now)
        if silent and not state:  # it may be stopped in the middle of a request
            parts.append(silent)
        elif state or key not in self._reasons or now - self._heard_at > SILENT_S:
            parts.append(self.planner_now())
        if key in self._reasons and self._reasons[key] not in parts:
            parts.append(self._reasons[key])
        return "; ".join(parts)

    def planner_now(self) -> str:
        """Return the leader, and whether it has ended or is stopped."""
        leader = self._roster.leader_of(self._roster.host_of(self.rank))
        return f"{leader}, which speaks for this host{self._leader_closed or self._leader.state()}"

    def publish(self, key: str, value: bytes) -> None:
        """Raise ValueError: the leader does that."""
        raise ValueError(
            f"rank {self.rank} does not plan for its host and cannot publish {key!r} "
            f"({len(value)} bytes): publish where is_planner is True"
        )

    def published(self, key: str) -> memoryview | None:
        """Return what the leader published, mapped."""
        self.poll()
        if key not in self._offers:
            if self._failed:
                raise LoaderError(self._failed)
            return None
        descriptor, size = self._offers.pop(key)
        view = self._mapped(descriptor, size)
        self._log.append(RecordKind.MAPPED, key)
        return view

    def planner_ended(self) -> bool:
        """Return whether the leader has ended or closed."""
        self.poll()
        return bool(self._leader_closed) or self._leader.has_ended()

    def close(self) -> None:
        """Take part no more."""
        if (leaving := self._leaving.detach()) is not None:
            leaving[1](*leaving[2], own_failure())

    def _hear(self, record: HostRecord) -> None:
        match record.kind:
            case RecordKind.RESULT:
                if group_of(record.key) not in self._ended:
                    self._results[record.key] = record
                # The leader has read this rank's value, and all that was written before it.
                self._log.release(self._posted.pop(record.key, (0.0, 0))[1])
                self._reasons.pop(record.key, None)
            case RecordKind.OFFER:
                descriptor, size = json.loads(self._records.body_of(record))
                if group_of(record.key) in self._ended:
                    self._log.append(RecordKind.MAPPED, record.key)
                else:
                    self._offers[record.key] = (descriptor, size)
            case RecordKind.REASONS:
                self._reasons = json.loads(self._records.body_of(record))
                self._heard_at = self._clock()
            case RecordKind.FAILED:
                self._failed = self._records.body_of(record).decode()
            case RecordKind.CLOSED:
                self._leader_closed = CLOSED + self._records.body_of(record).decode()
            case _:
                raise ValueError(f"the leader of this host wrote a record of kind {record.kind}")

    def _tell_read(self) -> None:
        """Tell the leader what this rank needs no more, when that is worth a page."""
        read = min((each.start for each in self._results.values()), default=self._records.offset)
        if read - self._told_read >= mmap.PAGESIZE:
            self._told_read = read
            self._log.append(RecordKind.READ, body=read.to_bytes(8, "little"))

    def _mapped(self, descriptor: int, size: int) -> memoryview | None:
        """Map what the leader has open; None if it has ended meanwhile."""
        if not size:
            return memoryview(b"")
        try:
            with self._leader_path(descriptor).open("rb", buffering=0) as file:
                mapped = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
        except (OSError, ValueError):  # ValueError: another file has the number now
            return None
        # It was the leader's file if the leader was there, and had not closed, until now.
        return None if self.planner_ended() else memoryview(mapped)

    def _leader_path(self, descriptor: int) -> Path:
        leader = self._roster.leader_of(self._roster.host_of(self.rank))
        return Path(f"/proc/{leader.pid}/fd/{descriptor}")


def _leave(
    pid: int, log: RecordWriter, records: RecordReader, leader: Process, why: str = ""
) -> None:
    """Say that a rank takes no part any more; as a finalizer it waits for nobody."""
    if pid == os.getpid():  # else a forked child drops its copy
        log.append(RecordKind.CLOSED, body=why.encode())
        for each in (log, records, leader):
            each.close()
