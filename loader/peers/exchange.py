"""Defines what the ranks of a loader do once they have met: a value a rank and key, in the store.

A key is posted and gathered once by each rank. Each appends its value to the key's entry and counts
itself; the last one makes one value of all, which the others ask for, ever more seldom. Who has
read it counts itself, too, and the last to do so deletes all of the key: so no rule about the order
of keys is needed. Keys that not all ranks will post, as those of an epoch that is left early,
belong to a group ("GROUP/...") that all end: each then tells what it has posted and not read, and
the last one deletes that.

Nothing blocks for another rank, and there is no thread: things move on when a rank calls `gather`.
A rank that waits for long finds out who is missing. It also looks at the processes of its own
machine, and leaves word of one that has ended or is stopped; a rank that closes leaves word, too.
"""

import contextlib
import json
import math
import os
import time
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from ..step.errors import LoaderError
from .members import CLOSED, ENDED, Peer, list_names, own_failure
from .store import Entries

# A key is asked for after a quarter of the time waited so far. In seconds: at first after so much
# for each rank, and at most after so much for each rank, or so much. All together ask 4,000 times a
# second, and then ever more seldom, down to 2,000 times.
FIRST_OF_RANK_S, LATER_OF_RANK_S, LATER_S = 2.5e-4, 5e-4, 0.02
# Who waits for so long reads what others have left word of; and, for so long for each rank, reads
# the key's entry, which has what all others have posted.
HEAR_S, HEAR_OF_RANK_S, LOOK_OF_RANK_S = 1.0, 0.002, 0.01
# A blocked request to the store is worth telling from here on.
STORE_S = 2.0
# A rank that waits for none has nothing to do for so long.
IDLE_S = 1.0

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[bytes, ...]).decode


@dataclass(slots=True)
class _Wait:
    """A key that this rank has posted: when to ask for it, and who is known to be missing.

    values: where this rank was the last to post it.
    """

    since: float
    look_at: float
    poll_at: float = 0.0
    values: tuple[bytes, ...] | None = None
    missing: tuple[int, ...] = ()


class Peers:
    """The ranks of a loader that have met. One thread at a time may use it.

    members: all of them, in order. greetings: what each said when it came.
    """

    def __init__(
        self, members: tuple[Peer, ...], rank: int, entries: Entries,
        greetings: tuple[str, ...] = ("",), clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`entries` are the loader's."""
        self.members, self.rank, self.greetings = members, rank, greetings
        self._entries, self._clock = entries, clock
        self._waits: dict[str, _Wait] = {}
        # Groups that this rank has begun and not ended, and those that it has ended.
        self._begun: set[str] = set()
        self._ended: set[str] = set()
        # When the next key that was asked for is to be asked for again.
        self._next_at = math.inf
        # What was left word of, by rank; how processes of this machine are; when to hear again.
        self._word: dict[int, str] = {}
        machine = members[rank].machine
        self._near = [peer for peer in members if machine and peer.machine == machine]
        self._seen: dict[int, str] = {}
        self._hear_at = 0.0
        entries.state.owner = self._store_owner
        # Others wait for this rank: they have to know, too, when it is dropped without `close`.
        self._leaving: weakref.finalize[..., Any] = weakref.finalize(
            self, _leave, os.getpid(), rank, len(members), entries, self._waits, self._begun
        )

    @property
    def ranks(self) -> int:
        """Data-parallel ranks of the loader."""
        return len(self.members)

    def post(self, key: str, value: bytes) -> None:
        """Give the others this rank's value for a key. ValueError if it was given before."""
        if _read_group(key) in self._ended:
            raise ValueError(f"key {key!r} is of a group that this rank has ended")
        if key in self._waits:
            raise ValueError(f"key {key!r} was posted already: each rank posts a key once")
        now = self._clock()
        self._begun.add(_read_group(key))
        wait = self._waits[key] = _Wait(now, now + max(HEAR_S, self.ranks * LOOK_OF_RANK_S))
        self._entries.append(f"key/{key}", self.rank, value)
        if self._entries.add(f"key/{key}/posted") == self.ranks:
            posted = self._entries.collect(f"key/{key}", self.ranks)
            wait.values = tuple(posted[rank] for rank in range(self.ranks))
            self._entries.set(f"key/{key}/all", zlib.compress(_encode(wait.values)))

    def gather(self, key: str) -> tuple[bytes, ...] | None:
        """Return all ranks' values for a key, in their order, and forget them; None until then.

        LoaderError if they can never be had: the store is lost.
        """
        wait, entries, now = self._waits.get(key), self._entries, self._clock()
        if wait is None:
            return None
        if wait.values is None and now >= wait.poll_at:
            packed = entries.find(f"key/{key}/all")
            wait.values = None if packed is None else _decode(zlib.decompress(packed))
            if wait.values is None:
                self._find_missing(entries, key, wait, now)
            wait.poll_at = now + pause_after(now - wait.since, self.ranks)
        if wait.values is None:
            self._next_at = min(self._next_at, wait.poll_at)
            return None
        del self._waits[key]
        if entries.add(f"key/{key}/read") == self.ranks:
            _delete(entries, key, self.ranks)
        return wait.values

    def end(self, group: str) -> None:
        """Say that this rank uses no key of a group, "GROUP/...", any more.

        All ranks end a group, each when it has what it needs; then nothing of it is left.
        """
        if group in self._ended or not self._leaving.alive:
            return
        self._ended.add(group)
        self._begun.discard(group)
        keys = [key for key in self._waits if _read_group(key) == group]
        for key in keys:
            del self._waits[key]
        with contextlib.suppress(LoaderError):  # a store that is gone has no entries left
            _end_group(self._entries, group, keys, self.rank, self.ranks)

    def pause_s(self) -> float:
        """Return how long it makes sense to wait until what was gathered in vain is tried again."""
        next_at, self._next_at = self._next_at, math.inf
        return min(IDLE_S, max(0.0, next_at - self._clock()))

    def describe_missing(self, key: str) -> str:
        """Return which ranks have not posted a key, as far as is known; "" if none is missing.

        It asks no rank, and may be called while another thread waits for the store.
        """
        wait = self._waits.get(key)
        if wait is None:
            return f"{self.members[self.rank]}, which has not posted it"
        named = [f"{self.members[rank]}{self._word.get(rank, '')}" for rank in wait.missing]
        parts = [list_names(named)] if named else []
        if since := self._entries.state.asking_since:
            waited = self._clock() - since
            if waited >= STORE_S:
                parts.append(
                    "the store of the process group, which has not answered for "
                    f"{waited:.0f} s: {self._store_owner} runs it, unless a launcher does"
                )
        return "; ".join(parts)

    def explain_loss(self, key: str) -> str:
        """Return why a key will never be complete, as far as is known; "" while it may be."""
        missing = self.describe_missing(key)
        return missing if ENDED in missing or CLOSED in missing else ""

    def close(self) -> None:
        """Take part no more; who closes last deletes what is left in the store.

        What this rank has posted stays for who still gathers it.
        """
        if (leaving := self._leaving.detach()) is not None:
            leaving[1](*leaving[2], own_failure())
        delete_left()

    def _find_missing(self, entries: Entries, key: str, wait: _Wait, now: float) -> None:
        """Find out who has not posted a key that is late, and how those are."""
        hear_s = max(HEAR_S, self.ranks * HEAR_OF_RANK_S)
        if now - wait.since < hear_s:
            return
        if now >= self._hear_at:
            self._hear_at = now + hear_s
            if self._hear(entries):
                for late in self._waits.values():
                    late.look_at = now
        if now >= wait.look_at:
            wait.look_at = now + max(HEAR_S, self.ranks * LOOK_OF_RANK_S)
            posted = entries.collect(f"key/{key}", self.ranks)
            wait.missing = tuple(rank for rank in range(self.ranks) if rank not in posted)

    def _hear(self, entries: Entries) -> bool:
        """Leave word of the processes of this machine; return whether there is word of others."""
        for peer in self._near:
            state = peer.state()
            if state != self._seen.get(peer.rank, ""):
                self._seen[peer.rank] = state
                entries.append("word", self.ranks + peer.rank, state.encode())
        if not entries.has_some("word"):
            return False
        words = entries.collect("word", 2 * self.ranks)
        # What a rank has said itself says more than what others have seen of it.
        texts = {n: words.get(n) or words.get(self.ranks + n) for n in range(self.ranks)}
        word = {rank: text.decode() for rank, text in texts.items() if text}
        self._word, is_new = word, word != self._word
        return is_new

    @property
    def _store_owner(self) -> str:
        return next((str(peer) for peer in self.members if peer.process == 0), "process 0")


def pause_after(waited_s: float, ranks: int) -> float:
    """Return when to ask the store again, of which so many ranks ask.

    >>> [pause_after(waited_s, ranks=2) for waited_s in (0.0, 0.04, 9.0)]
    [0.0005, 0.01, 0.02]
    >>> pause_after(9.0, ranks=1296)
    0.648
    """
    most = max(LATER_S, ranks * LATER_OF_RANK_S)
    return min(max(ranks * FIRST_OF_RANK_S, waited_s / 4), most)


def _read_group(key: str) -> str:
    """Return the group of a key, "" if it is in none.

    >>> _read_group("epoch 3/costs/17"), _read_group("costs")
    ('epoch 3', '')
    """
    return key.partition("/")[0] if "/" in key else ""


def _end_group(entries: Entries, group: str, keys: Iterable[str], rank: int, ranks: int) -> None:
    """Use keys of a group no more; the last rank deletes what is left of them."""
    entries.append(f"end/{group}", rank, json.dumps([*keys]).encode())
    if entries.add(f"end/{group}/ended") == ranks:
        texts = entries.collect(f"end/{group}", ranks).values()
        for key in dict.fromkeys(key for text in texts for key in json.loads(text)):
            _delete(entries, key, ranks)
        entries.delete(f"end/{group}", numbers=ranks)
        entries.delete(f"end/{group}/ended")


def _delete(entries: Entries, key: str, ranks: int) -> None:
    """Delete all entries of a key, of all ranks."""
    entries.delete(f"key/{key}", numbers=ranks)
    entries.delete(f"key/{key}/posted", f"key/{key}/all", f"key/{key}/read")


def _leave(
    pid: int, rank: int, ranks: int, entries: Entries, waits: dict[str, _Wait], begun: set[str],
    why: str = "",
) -> None:  # fmt: skip
    """Leave word that a rank takes no part any more; as a finalizer it does not wait.

    A value is sent to the store without an answer. What has one is done by `delete_left`.
    """
    if pid != os.getpid():  # a forked child drops its copy
        return
    with contextlib.suppress(LoaderError):
        entries.append("word", rank, (CLOSED + why).encode())
    unread = {group: [key for key in waits if _read_group(key) == group] for group in {"", *begun}}
    _left.append((entries, rank, ranks, unread))


# What is to be deleted of loaders that were closed or dropped. A finalizer may not wait for the
# store: the next loader that opens or closes does.
_left: deque[tuple[Entries, int, int, dict[str, list[str]]]] = deque()
os.register_at_fork(after_in_child=_left.clear)


def delete_left() -> None:
    """Delete what is left in the store of loaders that this process has closed or dropped."""
    while _left:
        entries, rank, ranks, unread = _left.popleft()
        with contextlib.suppress(LoaderError):  # a store that is gone has no entries left
            for group, keys in unread.items():
                _end_group(entries, group, keys, rank, ranks)
            if entries.add("left") == ranks:
                entries.delete("left")
                entries.delete("word", numbers=2 * ranks)
