"""The coordinator's effects, which are messages to send, and the type of its handlers."""

from collections.abc import Callable

import msgspec

from ..protocol.messages import Message
from ..protocol.transitions import Outcome

# Handles an event of a peer: (peer, message) -> outcome; None is the only outcome of its row.
Handler = Callable[..., Outcome | None]


class Send(msgspec.Struct, frozen=True):
    """Send this message, with these payload frames, to this peer."""

    peer: bytes
    message: Message
    payloads: tuple[object, ...] = ()
