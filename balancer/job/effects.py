"""What a balancer's jobs have its server do, and what it tells them for diagnostics."""

from collections.abc import Iterable

import msgspec

from ..protocol.messages import Message


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
        if send.payloads:
            open_groups.pop(send.peer, None)
            groups.append(SendTogether(send.peer, [send.message], send.payloads))
        elif (group := open_groups.get(send.peer)) is not None:
            group.messages.append(send.message)
        else:
            groups.append(SendTogether(send.peer, [send.message]))
            open_groups[send.peer] = groups[-1]
    return groups


class Diagnostics(msgspec.Struct):
    """What the server tells of itself: only `counterpoise doctor` shows it.

    wall_ahead_s: the wall clock less the loop's. refused: messages and peers that it turned away
    before a job saw them.
    """

    software: str = ""
    wall_ahead_s: float = 0.0
    refused: int = 0
