"""Lets the ranks of a loader meet: who they are, and that they agree.

Each rank appends what it tells of itself to one entry, then counts itself in `arrived`; the last
one sets `all`, which the others poll. All then read the entry.

Loaders of a process are told apart by their name, and by how many of that name the process opened
before: so ranks open loaders of one name in the same order. What all must bring alike is compared
by a digest; the texts are in the store once, for who needs to say in what they differ.
"""

import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence

import msgspec

from ...balancer.protocol.job_spec import difference
from ..step.errors import LoaderError
from ..step.ranks import Place
from .exchange import Peers, delete_left, pause_after
from .members import Peer, list_names, this_machine, this_process
from .store import Entries, MeetingPoint, StoreState, digest, open_point

# So many ranks that do not come are named, and so many loaders that a process opened.
NAMED_RANKS, NAMED_LOADERS = 8, 8
# A fact that is no JSON is shown so far.
SHOWN_CHARACTERS = 60

# What a rank tells of itself: who it is, a digest of its facts, and what it says to all.
_Arrival = tuple[Peer, str, str]
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(_Arrival).decode


def meet(
    place: Place, name: str, facts: Mapping[str, str], timeout_s: float, says: str = ""
) -> Peers:
    """Return the ranks of a loader, once all have come; called by each of them, in any order.

    name: the loader's. facts: what all must bring alike, by name, as JSON objects or other texts.
    says: a short text for all, see Peers.greetings. Raises LoaderError if ranks do not come within
    `timeout_s`, or bring other facts: it names them; ValueError if there is no process group to
    find them by.
    """
    point = open_point(place, timeout_s)
    steps = join(point, name, facts, timeout_s, this_machine(), says)
    while True:
        try:
            pause_s = next(steps)
        except StopIteration as end:
            peers: Peers = end.value
            return peers
        time.sleep(pause_s)


def join(
    point: MeetingPoint, name: str, facts: Mapping[str, str], timeout_s: float, machine: str,
    says: str = "", clock: Callable[[], float] = time.monotonic,
) -> Generator[float, None, Peers]:  # fmt: skip
    """Meet as `meet` does, but yield how long to wait where that sleeps.

    machine: what processes share that can see each other's state; "" where that is unknown.
    """
    delete_left()
    since, ranks, me = clock(), len(point.processes), point.rank
    root = Entries(point.store, point.label, StoreState(point.has_ended, clock=clock))
    peer = this_process(me, point.process, machine)
    count = root.add(f"opened/{name}/{point.process}")
    _record_process(root, peer, name, count)
    entries = root.below(f"loader/{name}/{count}")
    text = json.dumps(dict(facts))
    if entries.add(f"facts/{digest(text)}") == 1:
        entries.set(f"fact/{digest(text)}", text)
    entries.append("ranks", me, _encode((peer, digest(text), says)))
    if entries.add("arrived") == ranks:
        entries.set("all", b"1")
    while not entries.has("all"):
        waited = clock() - since
        if waited > timeout_s:
            # Who comes later shall not start without this rank.
            came = entries.collect("ranks", ranks)
            missing = [rank for rank in range(ranks) if rank not in came]
            reason = _explain_delay(root, name, point.processes, missing, timeout_s)
            entries.set("given up", reason)
            raise LoaderError(reason)
        yield pause_after(waited, ranks)
    if given_up := entries.find("given up"):
        raise LoaderError(given_up.decode())
    packed = entries.collect("ranks", ranks)
    arrivals = [_decode(packed[rank]) for rank in range(ranks)]
    _check_facts(entries, name, facts, me, arrivals)
    if entries.add("met") == ranks:
        entries.delete("ranks", numbers=ranks)
        entries.delete("arrived", "all", "met", f"facts/{digest(text)}", f"fact/{digest(text)}")
    members, _, greetings = zip(*arrivals, strict=True)
    return Peers(members, me, entries, greetings, clock)


def _check_facts(
    entries: Entries, name: str, facts: Mapping[str, str], me: int, arrivals: Sequence[_Arrival]
) -> None:
    """Raise LoaderError if a rank has brought other facts than this one."""
    differing = [arrival for arrival in arrivals if arrival[1] != arrivals[me][1]]
    if not differing:
        return
    theirs = json.loads(entries.get(f"fact/{differing[0][1]}"))
    # More ranks may differ, in something else: only those like the first are named.
    fact = next(key for key in {**facts, **theirs} if facts.get(key) != theirs.get(key))
    named = [peer for peer, digested, _ in differing if digested == differing[0][1]]
    raise LoaderError(
        f"{list_names(named, NAMED_RANKS)} opened loader {name!r} with another {fact} than rank "
        f"{me}: {describe_difference(facts.get(fact), theirs.get(fact))}: give all ranks the same, "
        "or a name= to each of several loaders"
    )


def _record_process(root: Entries, peer: Peer, name: str, count: int) -> None:
    """Leave word of this process and of what it opened, for who misses it elsewhere."""
    known = root.find(f"process/{peer.process}")
    opened = json.loads(known)[1] if known else {}
    opened.pop(name, None)
    opened[name] = count
    latest = dict(list(opened.items())[-NAMED_LOADERS:])
    root.set(f"process/{peer.process}", json.dumps([peer, latest]))


def _explain_delay(
    root: Entries, name: str, processes: Sequence[int], missing: list[int], timeout_s: float
) -> str:
    """Return which ranks have not come, and where their processes were seen."""
    named = [_describe_missing(root, rank, processes[rank]) for rank in missing[:NAMED_RANKS]]
    more = " and others" if len(missing) > NAMED_RANKS else ""
    return (
        f"loader {name!r} has {len(processes)} ranks, of which these have not opened it within "
        f"{timeout_s:.0f} s: {', '.join(named)}{more}: open the same loaders in the same order on "
        "all ranks, or give more timeout"
    )


def _describe_missing(root: Entries, rank: int, process: int) -> str:
    """Return a rank that is missing, where its process was seen, and what that has opened."""
    text = root.find(f"process/{process}")
    if text is None:
        return f"rank {rank} (process {process}, which has opened no loader)"
    fields, counts = json.loads(text)
    opened = [
        f"{name!r}" if count == 1 else f"{name!r} {count} times" for name, count in counts.items()
    ]
    peer = Peer(*fields)._replace(rank=rank)
    return f"{str(peer)[:-1]}, which has opened {list_names(opened)})"


def describe_difference(mine: str | None, theirs: str | None) -> str:
    """Return in what two texts differ, field by field where both are JSON objects.

    >>> describe_difference('{"shuffle": true, "seed": 1}', '{"shuffle": false, "seed": 1}')
    'shuffle: True here, False there'
    >>> describe_difference("4", None)
    "'4' here, nothing there"
    """
    try:
        if mine is not None and theirs is not None and (fields := difference(mine, theirs)):
            return fields
    except (ValueError, AttributeError):  # no JSON, or no object
        pass
    return f"{_shorten(mine)} here, {_shorten(theirs)} there"


def _shorten(text: str | None) -> str:
    if text is None:
        return "nothing"
    return repr(text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}...")
