"""Puts one host's values into the store, and reads those of the others.

For each key a host sets one entry, `KEY/HOST` (in parts if it is large), and counts itself in
`KEY/sent`; the last one sets `KEY/all`, which the others poll. Whoever has that reads all entries
at once and counts itself in `KEY/read`; the last reader deletes them. So it is known without a rule
about the order of keys that nobody needs an entry any more.

Keys that not all hosts will send belong to a group that all end: each then tells what it has sent
and not read, and the last one deletes that.
"""

import json
from collections.abc import Mapping

from .store import Entries

# Torch's server takes at most 8 MiB at once.
PART_BYTES = 4 << 20
# Before each part is the number of parts.
_COUNT_BYTES = 4


class HostValues:
    """The entries of a loader in the store, as one of several hosts sees them."""

    def __init__(self, entries: Entries, host: int, hosts: int) -> None:
        self.state = entries.state
        self._entries = entries
        self._host = host
        self._hosts = hosts
        # How many parts this host has sent for each key that it has not read.
        self._sent: dict[str, int] = {}

    def send(self, key: str, value: bytes) -> bool:
        """Give this host's value to the others; return True if it is the last."""
        entries = self._of(key)
        parts = [value[at : at + PART_BYTES] for at in range(0, len(value), PART_BYTES)] or [b""]
        self._sent[key] = len(parts)
        for name, part in zip(_names(self._host, len(parts)), parts, strict=True):
            entries.set(name, len(parts).to_bytes(_COUNT_BYTES, "little") + part)
        if entries.add("sent") < self._hosts:
            return False
        entries.set("all", b"1")
        return True

    def are_there(self, key: str) -> bool:
        """Return whether all hosts have sent a key."""
        return self._of(key).has("all")

    def absent(self, key: str, most: int) -> list[int]:
        """Return the first hosts that have not sent a key: with several requests."""
        names = [str(host) for host in range(self._hosts)]
        return [int(name) for name in self._of(key).missing(names, most)]

    def read(self, key: str) -> dict[int, bytes]:
        """Return the others' values, all of which are there; the last to read deletes all."""
        entries = self._of(key)
        others = [host for host in range(self._hosts) if host != self._host]
        n_parts = {self._host: self._sent.pop(key)}
        values = {}
        for host, first in zip(others, entries.get([str(host) for host in others]), strict=True):
            n_parts[host] = _count_of(first)
            rest = entries.get(_names(host, n_parts[host])[1:])
            values[host] = b"".join(part[_COUNT_BYTES:] for part in [first, *rest])
        if entries.add("read") == self._hosts:
            self._delete(key, n_parts)
        return values

    def tell(self, news: str) -> None:
        """Tell the others something of this host."""
        self._entries.set(f"news/{self._host}", news)

    def told(self, host: int) -> bytes | None:
        """Return what a host has told last, None if nothing."""
        return self._entries.find(f"news/{host}")

    def end(self, group: str, keys: list[str]) -> None:
        """Use keys of a group no more; the last host deletes what is left of them."""
        sent = {key: self._sent.pop(key) for key in keys if key in self._sent}
        entries = self._entries.below(f"end/{group}")
        entries.set(str(self._host), json.dumps(sent))
        if entries.add("ended") < self._hosts:
            return
        hosts = [str(host) for host in range(self._hosts)]
        left: dict[str, dict[int, int]] = {}
        for host, text in enumerate(entries.get(hosts)):
            for key, count in json.loads(text).items():
                left.setdefault(key, {})[host] = count
        for key, n_parts in left.items():
            if self.are_there(key):  # then hosts that do not name it have sent it, too, and read it
                readers = [host for host in range(self._hosts) if host not in n_parts]
                firsts = self._of(key).get([str(host) for host in readers])
                n_parts |= zip(readers, map(_count_of, firsts), strict=True)
            self._delete(key, n_parts)
        entries.delete([*hosts, "ended"])

    def leave(self) -> None:
        """Use nothing any more; the last host deletes what hosts have told."""
        if self._entries.add("left") == self._hosts:
            self._entries.delete(["left", *(f"news/{host}" for host in range(self._hosts))])

    def _of(self, key: str) -> Entries:
        return self._entries.below(f"key/{key}")

    def _delete(self, key: str, n_parts: Mapping[int, int]) -> None:
        """Delete all entries of a key: so many parts of each host."""
        names = [name for host, count in n_parts.items() for name in _names(host, count)]
        self._of(key).delete([*names, "sent", "all", "read"])


def _names(host: int, n_parts: int) -> list[str]:
    """Return the entries of a host's value.

    >>> _names(3, n_parts=2)
    ['3', '3/1']
    """
    return [str(host), *(f"{host}/{number}" for number in range(1, n_parts))]


def _count_of(part: bytes) -> int:
    return int.from_bytes(part[:_COUNT_BYTES], "little")
