"""Results of a worker: a decoded sample, and those of one lease that travel together."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ...balancer.protocol.parts import DecodedItem, Probed
from ...balancer.protocol.payload_messages import DecodeDone, ProbeDone
from ...balancer.protocol.status_messages import MICROSECONDS


class Decoded(msgspec.Struct, frozen=True, gc=False):
    """A decoded sample: its name, costs (empty if known before), layout, payload.

    The payload is what `buffers` give one after the other; they may be the sample's own memory, and
    change with it. `load_s` is how long a thread took for it before it was asked for.
    """

    key: str
    cost: tuple[int, ...]
    header: bytes
    buffers: Sequence[Any]
    load_s: float = 0.0


# Decoded samples are sent together up to this size (of payloads that are in the message), if they
# took no more time together than this, and the last of them no more than that.
MOST_BYTES = 64 << 10
MOST_S = 0.05
QUICK_S = 0.01


@dataclass(slots=True)
class LeaseResults:
    """Results of one lease that are not sent yet.

    A microbatch can be used when all its samples are there, and a lease has samples of one, or of
    several that take little time: so there is no hurry before its last. But a message costs the
    balancer about as much as copying 50 KB, so what travels inline is sent when it is as large as
    that, while the next sample is decoded; and a sample that took long is not held back for others,
    as its worker may die of them.
    """

    lease: int = 0
    probed: list[Probed] = field(default_factory=list)
    decoded: list[DecodedItem] = field(default_factory=list)
    frames: list[Any] = field(default_factory=list)
    nbytes: int = 0
    decoding_s: float = 0.0
    _probing_s: list[float] = field(default_factory=list)
    _decoding_s: list[float] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.probed or self.decoded)

    def add_probed(self, lease: int, result: Probed, took_s: float) -> None:
        """Keep a sample's costs."""
        self.lease = lease
        self.probed.append(result)
        self._probing_s.append(took_s)

    def add_decoded(self, lease: int, item: DecodedItem, frame: Any, took_s: float) -> bool:
        """Keep a decoded sample; return whether all are to be sent now.

        frame: its payload, None where the item has a serial.
        """
        self.lease = lease
        self._decoding_s.append(took_s)
        self.decoding_s += took_s
        self.decoded.append(item)
        if frame is not None:
            self.frames.append(frame)
            self.nbytes += memoryview(frame).nbytes
        return took_s > QUICK_S or self.nbytes > MOST_BYTES or self.decoding_s > MOST_S

    def take(self) -> list[tuple[ProbeDone | DecodeDone, tuple[Any, ...]]]:
        """Return the messages, with their payloads, that say everything; nothing is kept."""
        found: list[tuple[ProbeDone | DecodeDone, tuple[Any, ...]]] = []
        if self.probed:
            usual_us = _usual_us(self._probing_s)
            found.append((ProbeDone(self.lease, tuple(self.probed), usual_us), ()))
        if self.decoded:
            done = DecodeDone(self.lease, tuple(self.decoded), _usual_us(self._decoding_s))
            found.append((done, tuple(self.frames)))
        self.clear()
        return found

    def clear(self) -> None:
        """Forget everything: it belongs to a job that is over."""
        self.probed, self.decoded, self.frames = [], [], []
        self.nbytes, self.decoding_s, self._probing_s, self._decoding_s = 0, 0.0, [], []


def _usual_us(took_s: list[float]) -> int:
    """Return how long one sample takes as a rule: not one for which other processes had the core.

    >>> _usual_us([0.001, 0.002, 0.5])
    2000
    """
    return round(MICROSECONDS * statistics.median_low(took_s))
