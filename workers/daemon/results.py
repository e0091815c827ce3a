"""Results of one lease that travel together: all costs, and decoded samples that are small.

A message costs the balancer about as much as copying 50 KB. So samples that are decoded faster than
a message is handled wait for each other; one that is large, or took its time, is sent at once. What
lies in memory that ranks can read is not large.
"""

from dataclasses import dataclass, field
from typing import Any

from ...balancer.protocol.messages import DecodeDone, Message, PayloadHandle, ProbeDone
from ...balancer.protocol.parts import DecodedItem, Probed

# Decoded samples are sent together up to this size, if the first of them is not older than this and
# the last was decoded in no more time than that.
MOST_BYTES = 64 << 10
MOST_S = 0.005
QUICK_S = 0.001


@dataclass(slots=True)
class LeaseResults:
    """Results of one lease that are not sent yet."""

    lease: int = 0
    probed: list[Probed] = field(default_factory=list)
    decoded: list[DecodedItem] = field(default_factory=list)
    payloads: list[Any] = field(default_factory=list)
    handles: list[PayloadHandle | None] = field(default_factory=list)
    nbytes: int = 0
    _first_at: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.probed or self.decoded)

    def add_probed(self, lease: int, result: Probed) -> None:
        """Keep a sample's costs."""
        self.lease = lease
        self.probed.append(result)

    def add_decoded(
        self, lease: int, item: DecodedItem, payload: Any, took_s: float, now: float
    ) -> bool:
        """Keep a decoded sample; return whether all are to be sent now.

        payload: its bytes in one buffer, or their handle.
        """
        if not self.decoded:
            self._first_at = now
        self.lease = lease
        self.decoded.append(item)
        is_shared = isinstance(payload, PayloadHandle)
        self.handles.append(payload if is_shared else None)
        if not is_shared:
            self.payloads.append(payload)
            self.nbytes += memoryview(payload).nbytes
        return took_s > QUICK_S or self.nbytes > MOST_BYTES or now > self._first_at + MOST_S

    def take(self) -> list[tuple[Message, tuple[Any, ...]]]:
        """Return the messages, with their payloads, that say everything; nothing is kept."""
        found: list[tuple[Message, tuple[Any, ...]]] = []
        if self.probed:
            found.append((ProbeDone(self.lease, tuple(self.probed)), ()))
        if self.decoded:
            handles = tuple(self.handles) if any(self.handles) else ()
            done = DecodeDone(self.lease, tuple(self.decoded), handles)
            found.append((done, tuple(self.payloads)))
        self.clear()
        return found

    def clear(self) -> None:
        """Forget everything: it belongs to a job that is over."""
        self.probed, self.decoded, self.payloads, self.handles = [], [], [], []
        self.nbytes = 0
