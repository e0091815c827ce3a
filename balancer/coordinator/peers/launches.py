"""Distinguish the processes of one launch of the trainer from those of the next.

A trainer is restarted as a whole (torch elastic), but its processes come one by one, and the end of
those before may be noticed late or never. A launch is a number that rises when a process is seen to
replace another one, or to be gone from its run; processes that come later belong to a later launch.
"""

# Trainer processes whose launch is remembered after they have gone.
MAX_REMEMBERED = 1 << 14


class LaunchHistory:
    """The current launch, that of each process seen, and the processes that were replaced."""

    def __init__(self) -> None:
        self.current = 0
        self._launch_of: dict[bytes, int] = {}
        self._replaced: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._launch_of) + len(self._replaced)

    def of(self, peer: bytes) -> int:
        """Return a process' launch; one never seen belongs to the current launch."""
        return self._launch_of.get(peer, self.current)

    def admit(self, peer: bytes) -> int:
        """Record a process, of the current launch unless it was seen before; return its launch."""
        return _remember(self._launch_of, peer, self.current)

    def end(self, launch: int) -> None:
        """Record that a process of a launch has gone or was replaced: that launch is over."""
        self.current = max(self.current, launch + 1)

    def replace(self, peer: bytes, launch: int) -> None:
        """Record that another process now plays a rank of this one."""
        _remember(self._replaced, peer, launch)

    def is_replaced(self, peer: bytes) -> bool:
        """Return whether another process now plays a rank of this one."""
        return peer in self._replaced


def _remember(table: dict[bytes, int], peer: bytes, fact: int) -> int:
    """Record a fact about a peer unless there is one; the earliest peers are forgotten.

    >>> known = {b"a": 1}
    >>> _remember(known, b"a", 2), _remember(known, b"b", 2), known
    (1, 2, {b'a': 1, b'b': 2})
    """
    known = table.setdefault(peer, fact)
    if len(table) > MAX_REMEMBERED:
        del table[next(iter(table))]
    return known
