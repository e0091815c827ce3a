"""Puts one host's values into the store, and reads those of the others.

For each key a host sets one entry, `KEY/HOST`, and counts itself in `KEY/sent`; the last one sets
`KEY/all`, which the others poll. Whoever has that reads all entries at once and counts itself in
`KEY/read`; the last reader deletes them. So it is known without a rule about the order of keys that
nobody needs an entry any more.

Keys that not all hosts will send belong to a group that all end: each then tells what it has sent
and not read, and the last one deletes that.
"""

import contextlib
import json
import os
from collections import deque

from ..step.errors import LoaderError
from .store import Entries


class HostValues:
    """The entries of a loader in the store, as one of several hosts sees them."""

    def __init__(self, entries: Entries, host: int, hosts: int) -> None:
        self.state = entries.state
        self._entries = entries
        self._host = host
        self._hosts = hosts
        self._names = [str(each) for each in range(hosts)]
        # Keys that this host has sent and not read.
        self._sent: set[str] = set()

    def send(self, key: str, value: bytes) -> bool:
        """Give this host's value, of less than 8 MiB, to the others; return True if it is the last.

        Torch's server takes no more at once.
        """
        entries = self._of(key)
        self._sent.add(key)
        entries.set(str(self._host), value)
        if entries.add("sent") < self._hosts:
            return False
        entries.set("all", b"1")
        return True

    def are_there(self, key: str) -> bool:
        """Return whether all hosts have sent a key."""
        return self._of(key).has("all")

    def absent(self, key: str, most: int) -> list[int]:
        """Return the first hosts that have not sent a key: with several requests."""
        return [int(name) for name in self._of(key).missing(self._names, most)]

    def read(self, key: str) -> dict[int, bytes]:
        """Return the others' values, all of which are there; the last to read deletes all."""
        entries = self._of(key)
        others = [host for host in range(self._hosts) if host != self._host]
        values = dict(zip(others, entries.get([str(host) for host in others]), strict=True))
        self._sent.discard(key)
        if entries.add("read") == self._hosts:
            self._delete(key)
        return values

    def tell(self, news: str) -> None:
        """Tell the others something of this host."""
        self._entries.set(f"news/{self._host}", news)

    def told(self, host: int) -> bytes | None:
        """Return what a host has told last, None if nothing."""
        return self._entries.find(f"news/{host}")

    def end(self, group: str, keys: list[str]) -> None:
        """Use keys of a group no more; the last host deletes what is left of them."""
        sent = [key for key in keys if key in self._sent]
        self._sent.difference_update(sent)
        entries = self._entries.below(f"end/{group}")
        entries.set(str(self._host), json.dumps(sent))
        if entries.add("ended") == self._hosts:
            texts = entries.get(self._names)
            for key in dict.fromkeys(key for text in texts for key in json.loads(text)):
                self._delete(key)
            entries.delete([*self._names, "ended"])

    def leave(self, news: str, unread: dict[str, list[str]]) -> None:
        """Tell the others something for the last time, and have `delete_left` delete the rest.

        unread: the groups that were not ended, each with its keys as in `end`.
        """
        with contextlib.suppress(LoaderError):
            self.tell(news)
        self.state.on_request = lambda _: None
        _left.append((self, {"": [], **unread}))

    def _delete_left(self, unread: dict[str, list[str]]) -> None:
        """Use nothing any more; the last host deletes what hosts have told."""
        for group, keys in unread.items():
            self.end(group, keys)
        if self._entries.add("left") == self._hosts:
            self._entries.delete(["left", *(f"news/{host}" for host in self._names)])

    def _of(self, key: str) -> Entries:
        return self._entries.below(f"key/{key}")

    def _delete(self, key: str) -> None:
        """Delete all entries of a key, whoever has set one."""
        self._of(key).delete([*self._names, "sent", "all", "read"])


# What is to be deleted of loaders that were closed or dropped. A finalizer may not wait for the
# store: whoever opens or closes a loader next does.
_left: deque[tuple[HostValues, dict[str, list[str]]]] = deque()
os.register_at_fork(after_in_child=_left.clear)


def delete_left() -> None:
    """Delete what is left in the store of loaders that this process has closed or dropped."""
    while _left:
        values, unread = _left.popleft()
        with contextlib.suppress(LoaderError):  # a store that is gone has no entries left
            values._delete_left(unread)
