"""Lets the ranks of a loader meet: who they are, which share a host, and that they agree.

Each rank sets an entry `rank/R`, then counts itself in `arrived`; the last one sets `all`. The
first of a host leads it: the others find its memory by `host/NAME`, and open it, before they
arrive. If they cannot (another user, a hidden /proc) they are hosts of their own. Leaders poll for
`all`, read the entries and hand them on; followers ask the store nothing.

Loaders of a process are told apart by their name, and by how many of that name the process opened
before: so ranks open loaders of one name in the same order. Facts are compared by their digests;
their texts are in the store once, for who needs to say in what they differ.
"""

import itertools
import json
import os
import socket
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass

import msgspec

from ...balancer.protocol.job_spec import difference
from ..step.errors import LoaderError
from ..step.ranks import Place
from .exchange import Peers
from .follower import FollowingPeers
from .host_values import HostValues, delete_left
from .leader import NO_NEWS, Follower, LeadingPeers, pause_after
from .members import Peer, Process, Roster, listed, shared_host
from .records import HostRecord, RecordKind, RecordReader, RecordWriter
from .store import Entries, MeetingPoint, StoreState, digest, open_point

# So many ranks that do not come are named, and so many loaders that a process opened.
NAMED_RANKS, NAMED_LOADERS = 8, 8
# A fact that is no JSON is shown so far.
SHOWN_CHARACTERS = 60


def meet(
    place: Place,
    name: str,
    facts: Mapping[str, str],
    timeout_s: float,
) -> Peers:
    """Return the ranks of a loader, once all have come; called by each of them, in any order.

    A process that plays all ranks is one rank here. name: the loader's. facts: what all must bring
    alike, by name, as JSON objects or other texts.
    Raises LoaderError if ranks do not come within `timeout_s`, or bring other facts: it names them;
    ValueError if there is no process group to find them by.
    """
    if place.is_alone:
        me = Peer(0, 0, socket.gethostname(), os.getpid())
        return LeadingPeers(Roster((me,), ("",), {"": 0}), 0, None, None, {}, time.monotonic)
    steps = join(open_point(place, timeout_s), name, facts, timeout_s, shared_host())
    while True:
        try:
            pause_s = next(steps)
        except StopIteration as end:
            peers: Peers = end.value
            return peers
        time.sleep(pause_s)


@dataclass(frozen=True, slots=True)
class _Entry:
    """What a rank tells of itself: its memory, whose host it shares, digests of its facts."""

    peer: Peer
    shared: str
    leads: bool
    path: str
    token: str
    facts: dict[str, str]

    def open(self) -> tuple[Process, RecordReader]:
        """Open its memory; OSError if this process cannot, or it has ended."""
        process = Process(self.peer.pid)
        try:
            return process, RecordReader(self.path, bytes.fromhex(self.token))
        except OSError:
            process.close()
            raise


def join(
    point: MeetingPoint,
    name: str,
    facts: Mapping[str, str],
    timeout_s: float,
    host: str,
    clock: Callable[[], float] = time.monotonic,
) -> Generator[float, None, Peers]:
    """Meet as `meet` does, but yield how long to wait where that sleeps.

    host: what processes share that can open each other's memory; "" where that is unknown.
    """
    joining = _Joining(point, name, facts, timeout_s, clock)
    try:
        entry, leader = yield from joining.arrive(host)
        if leader is None:
            peers = yield from joining.lead(entry)
        else:
            peers = yield from joining.follow(entry, *leader)
    except BaseException:
        joining.log.close()
        raise
    return peers


class _Joining:
    """One rank's way to its peers."""

    def __init__(
        self,
        point: MeetingPoint,
        name: str,
        facts: Mapping[str, str],
        timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._point = point
        self._name = name
        self._facts = dict(facts)
        self._clock = clock
        self._since, self._timeout_s = clock(), timeout_s
        self._me = Peer(point.rank, point.process, socket.gethostname(), os.getpid())
        self._ranks = len(point.processes)
        delete_left()
        state = StoreState(point.has_ended)
        self._root = Entries(point.store, point.label, state)
        count = self._root.add(f"opened/{name}/{point.process}")
        self._record_process(count)
        self._entries = self._root.below(f"loader/{name}/{count}")
        self.log = RecordWriter()

    def _record_process(self, count: int) -> None:
        """Leave word of this process and of what it opened, for who misses it elsewhere."""
        known = self._root.find(f"process/{self._point.process}")
        opened = json.loads(known)["opened"] if known else {}
        opened.pop(self._name, None)
        opened[self._name] = count
        latest = dict(list(opened.items())[-NAMED_LOADERS:])
        told = asdict(self._me) | {"opened": latest}
        self._root.set(f"process/{self._point.process}", json.dumps(told))

    def arrive(
        self, host: str
    ) -> Generator[float, None, tuple[_Entry, tuple[_Entry, Process, RecordReader] | None]]:
        """Tell of this rank; return its entry, and that of the leader that it follows, opened."""
        leader = None
        alone = f"{host}#{self._me.rank}"
        leads = not host or self._entries.add(f"host/{host}") == 1
        if not leads:
            yield from self._wait(lambda: self._entries.has(f"leader/{host}"))
            found = msgspec.json.decode(self._entries.get([f"leader/{host}"])[0], type=_Entry)
            try:
                leader = (found, *found.open())
            except OSError:  # it may be of another user, or /proc be hidden
                leads, host = True, ""
        digests = {each: digest(text) for each, text in self._facts.items()}
        token = self.log.token.hex()
        entry = _Entry(self._me, host or alone, leads, self.log.path, token, digests)
        for each, text in self._facts.items():
            if self._entries.add(f"facts/{digests[each]}") == 1:
                self._entries.set(f"fact/{digests[each]}", text)
        if leads and host:
            self._entries.set(f"leader/{host}", msgspec.json.encode(entry))
        self._entries.set(f"rank/{self._me.rank}", msgspec.json.encode(entry))
        if self._entries.add("arrived") == self._ranks:
            self._entries.set("all", b"1")
        return entry, leader

    def lead(self, mine: _Entry) -> Generator[float, None, Peers]:
        """Wait for all ranks, and hand what is known of them to this host's others."""
        try:
            yield from self._wait(lambda: self._entries.has("all"))
            if given_up := self._entries.find("given up"):
                raise LoaderError(given_up.decode())
        except LoaderError as error:
            self.log.append(RecordKind.FAILED, body=str(error).encode())
            raise
        texts = self._entries.get([f"rank/{rank}" for rank in range(self._ranks)])
        known = b"[%b]" % b",".join(texts)
        entries = msgspec.json.decode(known, type=list[_Entry])
        followers = {
            each.peer.rank: self._opened(each)
            for each in entries
            if each.shared == mine.shared and not each.leads
        }
        if followers:
            self.log.append(RecordKind.ROSTER, body=known)
        try:
            roster = self._checked(entries)
        except LoaderError:
            _close(followers)
            raise
        names = self._names(entries)
        values = None
        if len(roster.hosts) > 1:
            values = HostValues(self._entries, roster.host_of(self._me.rank), len(roster.hosts))
            values.tell(NO_NEWS)  # so that the number of entries stays what it is
        peers = LeadingPeers(roster, self._me.rank, values, self.log, followers, self._clock)
        if self._entries.add("met") == len(roster.hosts):
            self._entries.delete(names)
        return peers

    def follow(
        self, mine: _Entry, leader: _Entry, process: Process, records: RecordReader
    ) -> Generator[float, None, Peers]:
        """Wait for what the leader of this host knows."""
        told: list[HostRecord] = []

        def has_told() -> bool:
            # In this order: the last that an ended process wrote is read.
            has_ended = process.has_ended()
            told.extend(itertools.islice(records.read(), 1))
            return bool(told) or has_ended

        try:
            yield from self._wait(has_told)
            if not told:
                raise LoaderError(
                    f"{leader.peer}, which speaks for host {mine.peer.host}, has ended before all "
                    "ranks had opened this loader: restart all ranks"
                )
            body = records.body_of(told[0])
            if told[0].kind is RecordKind.FAILED:
                raise LoaderError(body.decode())
            roster = self._checked(msgspec.json.decode(body, type=list[_Entry]))
        except BaseException:
            process.close()
            records.close()
            raise
        return FollowingPeers(roster, self._me.rank, self.log, process, records, self._clock)

    def _wait(self, is_there: Callable[[], bool]) -> Generator[float, None, None]:
        """Wait for something; LoaderError after this loader's timeout."""
        while not is_there():
            waited = self._clock() - self._since
            if waited > self._timeout_s:
                # Who comes later shall not start without this rank.
                reason = self._why_late()
                self._entries.set("given up", reason)
                raise LoaderError(reason)
            yield pause_after(waited, self._ranks)

    def _why_late(self) -> str:
        """Return which ranks have not come, and where their processes were seen."""
        keys = [f"rank/{rank}" for rank in range(self._ranks)]
        missing = [
            int(key.partition("/")[2]) for key in self._entries.missing(keys, NAMED_RANKS + 1)
        ]
        after = f"within {self._timeout_s:.0f} s"
        if not missing:
            return f"all ranks have opened loader {self._name!r}, but not one after another {after}"
        more = len(missing) > NAMED_RANKS
        named = ", ".join(map(self._seen, missing[:NAMED_RANKS])) + (" and others" if more else "")
        return (
            f"loader {self._name!r} has {self._ranks} ranks, of which these have not opened it "
            f"{after}: {named}: open the same loaders in the same order on all ranks, or give more "
            "timeout"
        )

    def _seen(self, rank: int) -> str:
        """Return a rank that is missing, where its process was seen, and what that has opened."""
        process = self._point.processes[rank]
        text = self._root.find(f"process/{process}")
        if text is None:
            return f"rank {rank} (process {process}, which has opened no loader)"
        told = json.loads(text)
        opened = [
            f"{name!r}" if count == 1 else f"{name!r} {count} times"
            for name, count in told["opened"].items()
        ]
        peer = Peer(rank, process, told["host"], told["pid"])
        return f"{str(peer)[:-1]}, which has opened {listed(opened)})"

    def _opened(self, entry: _Entry) -> Follower:
        try:
            return Follower(*entry.open())
        except OSError as error:
            raise LoaderError(
                f"{entry.peer} shares the host of {self._me}, but its memory cannot be opened "
                f"({error}): has it ended? Restart all ranks, as one user"
            ) from error

    def _checked(self, entries: Sequence[_Entry]) -> Roster:
        """Return who has met; LoaderError if a rank has brought other facts than this one."""
        mine = entries[self._me.rank].facts
        for name in sorted({name for entry in entries for name in entry.facts}):
            others = [each for each in entries if each.facts.get(name) != mine.get(name)]
            if others:
                raise LoaderError(self._describe(name, others))
        return Roster(
            tuple(each.peer for each in entries),
            tuple(each.shared for each in entries),
            {each.shared: each.peer.rank for each in entries if each.leads},
        )

    def _describe(self, name: str, others: Sequence[_Entry]) -> str:
        """Return in what fact some ranks differ from this one; the first of them in what way."""
        theirs = others[0].facts.get(name)
        text = self._entries.get([f"fact/{theirs}"])[0].decode() if theirs else None
        named = listed((each.peer for each in others), NAMED_RANKS)
        return (
            f"{named} opened loader {self._name!r} with another {name} than rank {self._me.rank}: "
            f"{describe_difference(self._facts.get(name), text)}: give all ranks the same, or a "
            "name= to each of several loaders"
        )

    def _names(self, entries: Sequence[_Entry]) -> list[str]:
        """Return the entries that nobody needs once all have met."""
        names = [f"rank/{entry.peer.rank}" for entry in entries]
        leading = {entry.shared for entry in entries if entry.leads}
        names += [f"{kind}/{shared}" for shared in leading for kind in ("host", "leader")]
        texts = {each for entry in entries for each in entry.facts.values()}
        names += [f"{kind}/{each}" for each in texts for kind in ("fact", "facts")]
        return [*names, "arrived", "all", "met"]


def describe_difference(mine: str | None, theirs: str | None) -> str:
    """Return in what two texts differ, field by field where both are JSON objects.

    >>> describe_difference('{"shuffle": true, "seed": 1}', '{"shuffle": false, "seed": 1}')
    'shuffle: True here, False there'
    >>> describe_difference("4", None)
    "'4' here, nothing there"
    """
    try:
        if mine is not None and theirs is not None and (found := difference(mine, theirs)):
            return found
    except (ValueError, AttributeError):  # no JSON, or no object
        pass
    return f"{_shown(mine)} here, {_shown(theirs)} there"


def _shown(text: str | None) -> str:
    if text is None:
        return "nothing"
    return repr(text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}...")


def _close(followers: Mapping[int, Follower]) -> None:
    for follower in followers.values():
        follower.process.close()
        follower.records.close()
