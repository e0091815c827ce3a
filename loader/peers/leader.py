"""The rank that speaks for its host: it collects its followers' values and reads other hosts'.

It asks the store for a key ever more seldom. What takes long is told: to the other hosts for which
of its own ranks this host waits, to its followers for which ranks at all.
"""

import json
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..step.errors import LoaderError
from .exchange import SILENT_S, TELL_S, Peers
from .host_values import HostValues, delete_left
from .members import CLOSED, Process, Roster, own_failure
from .records import HostRecord, RecordKind, RecordReader, RecordWriter, pack_values, unpack_values

# The store is asked for a key after an eighth of the time waited so far; at most so often, in
# seconds, and by all hosts together at most 1 / HOST_S times a second.
FIRST_S, LATER_S, HOST_S = 0.002, 0.02, 0.001
# Who is missing takes some requests to find out: as many hosts are named, and at first after
# TELL_S or, with many hosts, after so long for each.
NAMED_HOSTS, LOOK_S = 4, 0.02
# What a host says as long as it waits for nobody, and the number of what it says last.
NO_NEWS = json.dumps({"number": 0, "waits": {}, "states": {}})
LAST_NEWS = -1
Offers = dict[str, tuple[Any, set[int]]]


@dataclass(slots=True)
class Follower:
    """Another rank of this host."""

    process: Process
    records: RecordReader
    read: int = 0
    closed: str = ""

    @property
    def is_gone(self) -> bool:
        """True if it will read nothing more."""
        return bool(self.closed) or self.process.has_ended()


@dataclass(frozen=True, slots=True)
class _News:
    """What a host has told of a key: the ranks it waits for, and when its number last changed.

    states: what is said of its ranks, by rank.
    """

    number: int
    ranks: tuple[int, ...]
    changed_at: float
    states: dict[str, str]


@dataclass(slots=True)
class _Round:
    """One key under way: values of this host, and when the store is asked for the others."""

    since: float
    posts: dict[int, bytes] = field(default_factory=dict)
    sent_at: float | None = None
    poll_at: float = 0.0
    look_at: float = 0.0
    absent: dict[int, _News] = field(default_factory=dict)


def pause_after(waited_s: float, hosts: int) -> float:
    """Return when to ask the store again, of which so many hosts ask.

    >>> [pause_after(waited_s, hosts=2) for waited_s in (0.0, 0.08, 9.0)]
    [0.002, 0.01, 0.02]
    >>> pause_after(9.0, hosts=162)
    0.162
    """
    return min(max(FIRST_S, waited_s / 8), max(LATER_S, hosts * HOST_S))


def group_of(key: str) -> str:
    """Return the group of a key, "" if it is in none.

    >>> group_of("epoch 3/costs/17"), group_of("costs")
    ('epoch 3', '')
    """
    return key.partition("/")[0] if "/" in key else ""


class LeadingPeers(Peers):
    """The ranks as the leader of a host sees them."""

    is_planner = True

    def __init__(
        self,
        roster: Roster,
        rank: int,
        values: HostValues | None,
        log: RecordWriter | None,
        followers: dict[int, Follower],
        clock: Callable[[], float],
    ) -> None:
        super().__init__(roster, rank)
        self._host = roster.host_of(rank)
        self._hosts = len(roster.hosts)
        self._own = roster.hosts[self._host]
        self._values = values
        self._log = log
        self._followers = followers
        self._clock = clock
        self._rounds: dict[str, _Round] = {}
        self._results: dict[str, tuple[bytes, ...]] = {}
        # Groups with keys that this host has ended, and those that it has begun and not ended.
        self._ended: set[str] = set()
        self._open: set[str] = set()
        # What is published, until it was mapped by all followers.
        self._offers: Offers = {}
        self._news_number = 0
        self._tell_at = 0.0
        self._has_failed = False
        if values is not None:
            values.state.owner, values.state.clock = self._store_owner, clock
            if followers and log is not None:
                values.state.on_request = log.mark_asking
        # Others wait for this rank: they have to know, too, when nobody refers to it any more.
        self._leaving: weakref.finalize[..., Any] = weakref.finalize(
            self, _leave, os.getpid(), rank, values, log, followers, self._offers, self._open,
            self._rounds,
        )  # fmt: skip

    def post(self, key: str, value: bytes) -> None:
        """Give the others this rank's value."""
        if group_of(key) in self._ended:
            raise ValueError(f"key {key!r} is of a group that this rank has ended")
        posts = self._round(key).posts
        if self.rank in posts:
            raise ValueError(f"key {key!r} was posted already: each rank posts a key once")
        posts[self.rank] = value
        self.poll()

    def gather(self, key: str) -> tuple[bytes, ...] | None:
        """Return all ranks' values, once."""
        self.poll()
        return self._results.pop(key, None)

    def end(self, group: str) -> None:
        """Use the keys of a group no more; the last host to end it deletes what is left of it."""
        if group in self._ended or not self._leaving.alive:
            return
        unread = [key for key in self._rounds if group_of(key) == group]
        for key in unread:
            del self._rounds[key]
        for key in [key for key in self._results if group_of(key) == group]:
            del self._results[key]
        self._ended.add(group)
        self._open.discard(group)
        if self._values is not None:
            self._values.end(group, unread)

    def poll(self) -> None:
        """Hear followers, and do what each key under way needs."""
        if not self._leaving.alive:
            return
        now = self._clock()
        try:
            for rank, follower in self._followers.items():
                for record in follower.records.read():
                    self._hear(rank, follower, record)
            for key, each in list(self._rounds.items()):
                self._advance(key, each, now)
            self._tell(now)
        except LoaderError as error:
            if not self._has_failed:
                self._has_failed = True
                self._write(RecordKind.FAILED, body=str(error).encode())
            raise
        self._release()

    def pause_s(self) -> float:
        """Return the time to the next request, at most 20 ms: followers may post."""
        now = self._clock()
        asked = [each.poll_at - now for each in self._rounds.values() if each.sent_at is not None]
        return min(max(FIRST_S, min(asked, default=LATER_S)), LATER_S)

    def why_missing(self, key: str) -> str:
        """Return which ranks have not posted a key."""
        if key in self._results:
            return ""
        each = self._rounds.get(key)
        if each is None:
            return f"{self.members[self.rank]}, which has not posted it"
        now = self._clock()
        parts = [self._described(rank) for rank in self._own if rank not in each.posts]
        for host, news in list(each.absent.items()):
            # A host that still says for whom it waits is well: those ranks are what is missing.
            states, leader = news.states, self._roster.leader_of(host)
            parts += [f"{self.members[rank]}{states.get(str(rank), '')}" for rank in news.ranks]
            # One that has never said it, or not lately, may itself have stopped, and all its ranks.
            if not news.ranks or now - news.changed_at > SILENT_S:
                n_ranks = len(self._roster.hosts[host])
                for_all = f", which speaks for {n_ranks} ranks of its host" if n_ranks > 1 else ""
                parts.append(f"{leader}{for_all}{states.get(str(leader.rank), '')}")
        if self._values is not None:
            parts.append(self._silent_store(self._values.state.asking_since, now))
        return "; ".join(part for part in parts if part) or "ranks of other hosts"

    def publish(self, key: str, value: bytes) -> None:
        """Let followers map a value."""
        waiting = {rank for rank, each in self._followers.items() if not each.is_gone}
        # What only those that are gone have not mapped is kept for nobody.
        for other in [key for key, (_, those) in self._offers.items() if not those & waiting]:
            self._offers.pop(other)[0].close()
        if not waiting or not self._leaving.alive:
            return
        file = os.fdopen(os.memfd_create("counterpoise-published"), "r+b", buffering=0)
        rest = memoryview(value)
        while rest:
            rest = rest[file.write(rest) :]
        self._offers[key] = (file, waiting)
        self._write(RecordKind.OFFER, key, json.dumps([file.fileno(), len(value)]).encode())

    def published(self, key: str) -> memoryview | None:
        """Raise ValueError: what this rank publishes is for the others."""
        raise ValueError(
            f"rank {self.rank} plans for its host and cannot map {key!r}: keep what it publishes"
        )

    def planner_ended(self) -> bool:
        """Return False: it is this process."""
        return False

    def close(self) -> None:
        """Take part no more; who closes last deletes what is left in the store."""
        if (leaving := self._leaving.detach()) is not None:
            leaving[1](*leaving[2], own_failure())
        delete_left()

    def _round(self, key: str) -> _Round:
        if key not in self._rounds:
            now = self._clock()
            look_at = now + max(TELL_S, self._hosts * LOOK_S)
            self._rounds[key] = _Round(since=now, look_at=look_at)
            self._open.add(group_of(key))
        return self._rounds[key]

    def _hear(self, rank: int, follower: Follower, record: HostRecord) -> None:
        match record.kind:
            case RecordKind.POST if group_of(record.key) in self._ended:
                pass
            case RecordKind.POST:
                self._round(record.key).posts[rank] = follower.records.body_of(record)
            case RecordKind.READ:
                follower.read = int.from_bytes(follower.records.body_of(record), "little")
            case RecordKind.MAPPED:
                self._forget_offer(record.key, rank)
            case RecordKind.CLOSED:
                follower.closed = CLOSED + follower.records.body_of(record).decode()
            case _:
                raise ValueError(f"{self.members[rank]} wrote a record of kind {record.kind}")

    def _advance(self, key: str, each: _Round, now: float) -> None:
        if each.sent_at is None:
            if len(each.posts) == len(self._own):
                self._send(key, each, now)
        elif now >= each.poll_at and self._values is not None:
            if self._values.are_there(key) or (
                now >= each.look_at and not self._look(self._values, key, each, now)
            ):
                self._read(self._values, key, each)
            each.poll_at = now + pause_after(now - each.sent_at, self._hosts)

    def _send(self, key: str, each: _Round, now: float) -> None:
        """Give this host's values to the others."""
        each.sent_at = now
        each.poll_at = now + pause_after(0.0, self._hosts)
        values = [each.posts[rank] for rank in self._own]
        if self._values is None:
            self._finish(key, tuple(values))
        elif self._values.send(key, pack_values(values)):
            self._read(self._values, key, each)

    def _read(self, values: HostValues, key: str, each: _Round) -> None:
        """Read the other hosts' values, all of which are there."""
        found = dict(each.posts)
        for host, packed in values.read(key).items():
            found |= zip(self._roster.hosts[host], unpack_values(packed), strict=True)
        self._finish(key, tuple(found[rank] for rank in range(self.ranks)))

    def _finish(self, key: str, values: tuple[bytes, ...]) -> None:
        del self._rounds[key]
        self._results[key] = values
        if self._followers:
            self._write(RecordKind.RESULT, key, pack_values(values))

    def _look(self, values: HostValues, key: str, each: _Round, now: float) -> bool:
        """Find out which hosts have sent nothing, and what they say; return if there are any."""
        each.look_at = now + max(TELL_S, (now - each.since) / 2)
        news: dict[int, _News] = {}
        for host in values.absent(key, NAMED_HOSTS):
            told = json.loads(values.told(host) or NO_NEWS)
            number, ranks = told["number"], tuple(told["waits"].get(key, ()))
            before = each.absent.get(host)
            is_old = before is not None and (before.number, before.ranks) == (number, ranks)
            news[host] = before if before and is_old else _News(number, ranks, now, told["states"])
        each.absent = news
        return bool(news)

    def _tell(self, now: float) -> None:
        """Tell others what this host waits for, once that takes long."""
        late = {key: each for key, each in self._rounds.items() if now - each.since > TELL_S}
        if not late or now < self._tell_at:
            return
        self._tell_at = now + TELL_S
        # Hosts tell of their own ranks only; a new number says that this one is alive.
        waits = {
            key: [rank for rank in self._own if rank not in each.posts]
            for key, each in late.items()
            if each.sent_at is None
        }
        if waits and self._values is not None:
            absent = {rank for ranks in waits.values() for rank in ranks if rank != self.rank}
            self._tell_hosts(waits, {rank: self._state_of(rank) for rank in absent})
        if self._followers:
            reasons = {key: self.why_missing(key) for key in late}
            self._write(RecordKind.REASONS, body=json.dumps(reasons).encode())

    def _tell_hosts(self, waits: dict[str, list[int]], states: dict[int, str]) -> None:
        """Tell the other hosts for which ranks this one waits, by key, and what those are at."""
        self._news_number += 1
        if self._values is not None:
            news = {"number": self._news_number, "waits": waits, "states": states}
            self._values.tell(json.dumps(news))

    def _release(self) -> None:
        """Give back memory that all followers have read."""
        if self._followers and self._log is not None:
            here = [each.read for each in self._followers.values() if not each.is_gone]
            self._log.release(min(here, default=0))

    def _forget_offer(self, key: str, rank: int) -> None:
        if key in self._offers:
            file, waiting = self._offers[key]
            waiting.discard(rank)
            if not waiting:
                file.close()
                del self._offers[key]

    def _write(self, kind: RecordKind, key: str = "", body: bytes = b"") -> None:
        if self._log is not None:
            self._log.append(kind, key, body)

    def _described(self, rank: int) -> str:
        return str(self.members[rank]) + self._state_of(rank)

    def _state_of(self, rank: int) -> str:
        follower = self._followers.get(rank)  # None: this process
        return follower.closed or follower.process.state() if follower else ""


def _leave(
    pid: int,
    rank: int,
    values: HostValues | None,
    log: RecordWriter | None,
    followers: dict[int, Follower],
    offers: Offers,
    groups: set[str],
    rounds: dict[str, _Round],
    why: str = "",
) -> None:
    """Say that a rank takes no part any more; as a finalizer it waits for nobody.

    A value is sent to the store without an answer. What has one is done by `delete_left`.
    """
    if pid != os.getpid():  # a forked child drops its copy
        return
    # Before the descriptors are: who has opened one and then reads no CLOSED has the right one.
    if log is not None:
        log.append(RecordKind.CLOSED, body=why.encode())
    for file, _ in offers.values():
        file.close()
    for follower in followers.values():
        follower.process.close()
        follower.records.close()
    if values is not None:
        news = {"number": LAST_NEWS, "waits": {}, "states": {rank: CLOSED + why}}
        unread = {each: [key for key in rounds if group_of(key) == each] for each in groups}
        values.leave(json.dumps(news), unread)
    if log is not None:
        log.close()
