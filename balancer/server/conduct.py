"""Counts what peers send in vain, and decides which of them are not served any more.

Theory of operation. A message that is malformed, or that its sender may not send, is a *fault*: an
honest peer of this version sends none, one of another version sends a few before it has been told
why it is turned away. A message that is well-formed and changes nothing (its sender is not known,
its state has no use for it) is *useless*: honest peers send some, late and repeated ones, and their
payloads may be large. Each peer has an allowance of each, which refills with time. A peer that
exceeds one is *banned* for a while: its connection is closed, and what still arrives under its name
is dropped before it is decoded. So a flood costs the balancer what it takes to read it, not what it
takes to understand it.

A peer's first fault is logged a moment later, and not if the peer is banned by then: of a flood the
log has one line, of a peer that is turned away too.

Pure: no socket, and the time is an argument.
"""

import msgspec

# For each kind of offence: how many a peer may commit at once, and how many more each second.
FAULTS = (8.0, 0.1)
USELESS = (10_000.0, 100.0)
USELESS_BYTES = (float(256 << 20), float(4 << 20))
# A banned peer is served again after this many seconds without a message.
BAN_S = 60.0
# A peer that is not banned this many seconds after its first fault is no flood.
QUIET_S = 1.0
# Peers that are remembered: the one that offended longest ago is forgotten first.
MAX_REMEMBERED = 4096


class _Allowance(msgspec.Struct):
    """A token bucket: `left` of `most` tokens, refilled at `per_s`."""

    most: float
    per_s: float
    left: float = 0.0
    at: float = -1.0

    def __post_init__(self) -> None:
        self.left = self.most

    def take(self, amount: float, now: float) -> bool:
        """Take an amount; return False if there was not as much."""
        if self.at >= 0:
            self.left = min(self.most, self.left + self.per_s * max(0.0, now - self.at))
        self.at = now
        self.left -= amount
        return self.left >= 0


class _Record(msgspec.Struct):
    """A peer's allowances; `banned_until` is 0 until it has exceeded one."""

    faults: _Allowance = msgspec.field(default_factory=lambda: _Allowance(*FAULTS))
    useless: _Allowance = msgspec.field(default_factory=lambda: _Allowance(*USELESS))
    useless_bytes: _Allowance = msgspec.field(default_factory=lambda: _Allowance(*USELESS_BYTES))
    banned_until: float = 0.0
    dropped: int = 0
    last_fault: str = ""


class PeerConduct:
    """The peers that have sent something in vain, by name; of a bounded number.

    >>> conduct = PeerConduct()
    >>> [conduct.record_fault(b"p", now=0.0) for _ in range(9)].index(True)
    8
    >>> conduct.drops(b"p", now=1.0), conduct.drops(b"q", now=1.0), conduct.drops(b"p", now=99.0)
    (1, 0, 0)
    """

    def __init__(self) -> None:
        self._records: dict[bytes, _Record] = {}
        # First faults that are not logged yet, the oldest first.
        self._unlogged: dict[bytes, tuple[float, str]] = {}

    def __len__(self) -> int:
        return len(self._records)

    def drops(self, peer: bytes, now: float) -> int:
        """Return how many messages of a banned peer were dropped with this one; 0: serve it."""
        record = self._records.get(peer)
        if record is None or not record.banned_until:
            return 0
        if now > record.banned_until:
            del self._records[peer]
            return 0
        record.banned_until = now + BAN_S
        record.dropped += 1
        return record.dropped

    def record_fault(self, peer: bytes, now: float, reason: str = "") -> bool:
        """Count a message that its sender may not send; return True if it is banned from now on."""
        record = self._record(peer)
        if record.faults.at < 0:
            self._unlogged[peer] = now, reason
        record.last_fault = reason
        return self._ban(peer, not record.faults.take(1, now), now)

    def lines_due(self, now: float) -> list[str]:
        """Return the first faults that are to be logged now, of peers that are not banned."""
        due = []
        while self._unlogged:
            peer, (at, reason) = next(iter(self._unlogged.items()))
            if now < at + QUIET_S and len(self._unlogged) <= MAX_REMEMBERED:
                break
            del self._unlogged[peer]
            due.append(reason)
        return due

    def last_fault(self, peer: bytes) -> str:
        """Return the reason of a peer's last fault, "" if it has none (that is remembered)."""
        record = self._records.get(peer)
        return "" if record is None else record.last_fault

    def record_useless(self, peer: bytes, nbytes: int, now: float) -> bool:
        """Count a message that changes nothing; return True if its sender is banned from now on."""
        record = self._record(peer)
        within = record.useless.take(1, now), record.useless_bytes.take(nbytes, now)
        return self._ban(peer, not all(within), now)

    def _record(self, peer: bytes) -> _Record:
        """Return a peer's record, as the one that was touched last."""
        record = self._records.pop(peer, None) or _Record()
        self._records[peer] = record
        if len(self._records) > MAX_REMEMBERED:
            del self._records[next(iter(self._records))]
        return record

    def _ban(self, peer: bytes, is_exceeded: bool, now: float) -> bool:
        if is_exceeded:
            self._records[peer].banned_until = now + BAN_S
            self._unlogged.pop(peer, None)
        return is_exceeded


# Dropped messages that are forgotten each second: reading these takes a few percent of a core.
PAID_PER_S = 5_000.0
# Connections are let in up to this debt: an honest peer may send something in vain, too.
FREE_DEBT = 1_000.0
# No debt is larger, so that newcomers wait for 3 s at most after the last dropped message.
MOST_DEBT = FREE_DEBT + 3 * PAID_PER_S
# While messages wait that are to be dropped, the gate is looked at again after this many seconds.
LOOK_AGAIN_S = 0.001


class ConnectionGate:
    """Counts dropped messages; closed to new connections while there have been too many of late.

    A banned peer can come back under another name at once, and until the balancer has read enough
    of it to ban it again, libzmq holds what it sends. So each connection may cost some memory and
    some time, and only their rate bounds the sum. A dropped message is a *debt*, which is paid off
    at a fixed rate; while there is more than a little, or most of what waits to be read is to be
    dropped, nobody new is let in, whoever it is. Connections that exist are not affected, and
    honest newcomers wait for some seconds.

    >>> gate = ConnectionGate()
    >>> for _ in range(2000):
    ...     gate.record_dropped(now=7.0)
    >>> gate.closed_for_s(now=7.0), gate.closed_for_s(now=7.1), gate.closed_for_s(now=8.0)
    (0.2, 0.1, 0.0)
    """

    def __init__(self) -> None:
        self._debt = 0.0
        self._at = 0.0
        self._dropped = 0
        self._is_flooded = False

    def record_dropped(self, now: float) -> None:
        """Count a message that was read in vain."""
        self._debt = min(self._debt_at(now) + 1, MOST_DEBT)
        self._at = now
        self._dropped += 1

    def end_turn(self, read: int, is_more: bool) -> None:
        """Note how many messages were read in a turn, and whether more are likely to wait."""
        self._is_flooded = is_more and 2 * self._dropped > read
        self._dropped = 0

    def closed_for_s(self, now: float) -> float:
        """Return after how many seconds connections are let in again; 0.0: they are."""
        least = LOOK_AGAIN_S if self._is_flooded else 0.0
        return round(max(least, (self._debt_at(now) - FREE_DEBT) / PAID_PER_S), 6)

    def _debt_at(self, now: float) -> float:
        return max(0.0, self._debt - PAID_PER_S * max(0.0, now - self._at))
