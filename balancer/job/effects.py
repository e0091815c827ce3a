"""What a balancer's jobs have its server do."""

from collections.abc import Iterable

import msgspec

from ..protocol.messages import Message


class Send(msgspec.Struct, frozen=True):
    """Send this message, with these payload frames, to this peer."""

    peer: bytes
    message: Message
    payloads: tuple[object, ...] = ()


Group = tuple[bytes, list[Message], tuple[object, ...]]


def group_by_peer(sends: Iterable[Send]) -> list[Group]:
    """Return what may travel together: each peer is told the same in the same order.

    A group is a peer, messages to it, and payload frames: where there are any, of one message.

    >>> told = [Send(b"a", 1), Send(b"b", 2), Send(b"a", 3), Send(b"a", 4, (b"",)), Send(b"a", 5)]
    >>> [(peer, *messages) for peer, messages, _ in group_by_peer(told)]
    [(b'a', 1, 3), (b'b', 2), (b'a', 4), (b'a', 5)]
    """
    groups: list[Group] = []
    messages_to: dict[bytes, list[Message]] = {}
    for send in sends:
        if send.peer in messages_to and not send.payloads:
            messages_to[send.peer].append(send.message)
            continue
        groups.append((send.peer, [send.message], send.payloads))
        messages_to[send.peer] = groups[-1][1]
        if send.payloads:
            del messages_to[send.peer]
    return groups
