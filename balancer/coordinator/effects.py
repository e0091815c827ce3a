"""The coordinator's effects, which are messages to send, and the type of its handlers.

Small microbatches for one process that are ready at the same time leave in one message: to send,
receive and read another costs more than what it says.
"""

from collections.abc import Callable

import msgspec

from ..protocol.messages import Batch, Batches, Lease, Message
from ..protocol.transitions import Outcome

# Handles an event of a peer: (peer, message) -> outcome; None is the only outcome of its row.
Handler = Callable[..., Outcome | None]
# Microbatches leave together while their headers have about so many bytes; each sample has some
# beside its name and its layout.
TOGETHER_BYTES, SAMPLE_BYTES = 1 << 18, 64


class Send(msgspec.Struct, frozen=True):
    """Send this message, with these payload frames, to this peer."""

    peer: bytes
    message: Message
    payloads: tuple[object, ...] = ()


class _Together(msgspec.Struct):
    """Microbatches for one process that leave together, the first at a place in the outbox.

    nbytes: about those of their headers.
    """

    place: int
    batches: list[Batch]
    nbytes: int


class Outbox:
    """Messages in the order in which they leave."""

    def __init__(self) -> None:
        self._sends: list[Send] = []
        # By peer; no other message for it is behind them.
        self._together: dict[bytes, _Together] = {}

    def add(self, peer: bytes, message: Message, payloads: tuple[object, ...] = ()) -> None:
        """Add a message; a small microbatch leaves with those before it."""
        if type(message) is Batch and not (payloads or message.holes):
            self._add_small(peer, message)
            return
        if self._together:
            self._join(self._together.pop(peer, None))
        self._sends.append(Send(peer, message, payloads))

    def _add_small(self, peer: bytes, batch: Batch) -> None:
        nbytes = sum([len(each.key) + len(each.header) + SAMPLE_BYTES for each in batch.items])
        known = self._together.get(peer)
        if known is not None and known.nbytes + nbytes <= TOGETHER_BYTES:
            known.batches.append(batch)
            known.nbytes += nbytes
            return
        self._join(known)
        self._together[peer] = _Together(len(self._sends), [batch], nbytes)
        self._sends.append(Send(peer, batch))

    def _join(self, together: _Together | None) -> None:
        """Put microbatches into one message, if they are several."""
        if together is not None and len(together.batches) > 1:
            first = self._sends[together.place]
            self._sends[together.place] = Send(first.peer, Batches(tuple(together.batches)))

    def replace_leases(self, change: Callable[[bytes, Lease], Lease]) -> None:
        """Replace each lease by what `change` makes of its worker and it."""
        for place, effect in enumerate(self._sends):
            if isinstance(effect.message, Lease):
                self._sends[place] = Send(effect.peer, change(effect.peer, effect.message))

    def take(self) -> list[Send]:
        """Return the messages, and forget them."""
        for together in self._together.values():
            self._join(together)
        self._together.clear()
        sends, self._sends = self._sends, []
        return sends
