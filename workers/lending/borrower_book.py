"""A rank's books of one worker's payloads: which handles are of use, and what it has answered.

The counterpart of lender_book.py, which has the theory. What a rank has answered is kept until the
worker says that no payload is that old any more.
"""

from collections.abc import Container, Iterable

from ...balancer.protocol.messages import PayloadHandle


class BorrowerBook:
    """The payloads that a rank may read in one worker's memory, and the answers that it owes."""

    def __init__(self, first: int, serials: Iterable[int]) -> None:
        """See `LenderBook.connect` for the arguments."""
        self._first = first
        self._former = set(serials)
        self._answered: set[int] = set()
        self._owed: dict[int, None] = {}
        self._oldest = 0

    @property
    def owes(self) -> bool:
        """True if there are questions that are not answered."""
        return bool(self._owed)

    def may_read(self, handle: PayloadHandle) -> bool:
        """Return whether the payload that a handle names is there and stays until we answer."""
        serial = handle.serial
        known = serial >= self._first or serial in self._former
        return known and serial >= self._oldest and serial not in self._answered

    def ask(self, oldest: int, serials: Iterable[int]) -> None:
        """Record a worker's question; before `oldest` it has no payloads any more."""
        self._owed.update(dict.fromkeys(serials))
        if oldest > self._oldest:
            self._oldest = oldest
            self._answered = {serial for serial in self._answered if serial >= oldest}
            self._former = {serial for serial in self._former if serial >= oldest}

    def answers(self, in_use: Container[int]) -> list[int]:
        """Return, once, the serials asked about that are not in use."""
        done = [serial for serial in self._owed if serial not in in_use]
        for serial in done:
            del self._owed[serial]
        self._answered.update(done)
        return done
