"""What a balancer's jobs have its server do, and what is counted of them for diagnostics."""

import math
from collections import deque
from collections.abc import Iterable

import msgspec

from ..protocol.messages import Message
from ..protocol.status_messages import MICROSECONDS

# The last workers that were refused or lost are remembered.
REMEMBERED = 4


class Send(msgspec.Struct, frozen=True):
    """Send this message, with these payload frames, to this peer."""

    peer: bytes
    message: Message
    payloads: tuple[object, ...] = ()


class SendTogether(msgspec.Struct, frozen=True):
    """Messages to one peer, in their order; where there are payload frames, one."""

    peer: bytes
    messages: list[Message]
    payloads: tuple[object, ...] = ()


def group_by_peer(sends: Iterable[Send]) -> list[SendTogether]:
    """Return what may travel together: each peer is told the same in the same order.

    >>> told = [Send(b"a", 1), Send(b"b", 2), Send(b"a", 3), Send(b"a", 4, (b"",)), Send(b"a", 5)]
    >>> [(group.peer, *group.messages) for group in group_by_peer(told)]
    [(b'a', 1, 3), (b'b', 2), (b'a', 4), (b'a', 5)]
    """
    groups: list[SendTogether] = []
    open_groups: dict[bytes, SendTogether] = {}
    for send in sends:
        group = None if send.payloads else open_groups.get(send.peer)
        if group is None:
            group = SendTogether(send.peer, [send.message], send.payloads)
            groups.append(group)
            open_groups[send.peer] = group
            if send.payloads:
                del open_groups[send.peer]
        else:
            group.messages.append(send.message)
    return groups


class Diagnostics(msgspec.Struct):
    """Counters and texts that `counterpoise doctor` shows; no decision depends on them.

    Times are on the loop's clock; `wall_ahead_s` is the wall clock less that clock.
    `lost` counts workers that died or whose heartbeat timed out, the last at `lost_at`; `refused`
    messages and peers that the server turned away before a job saw them; `turned_away` workers,
    with the last ones' reasons.
    """

    software: str = ""
    wall_ahead_s: float = 0.0
    lost: int = 0
    lost_at: float = -math.inf
    last_lost: deque[str] = msgspec.field(default_factory=lambda: deque(maxlen=REMEMBERED))
    refused: int = 0
    turned_away: int = 0
    last_refused: deque[str] = msgspec.field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def clock_us(self, now: float) -> int:
        """Return the wall clock's time, in microseconds."""
        return round((now + self.wall_ahead_s) * MICROSECONDS)
