"""Defines what a worker can do with samples: what the loop asks for, and the results."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec

from ...balancer.protocol.messages import Probed, SampleRef
from ...balancer.protocol.worker_session import SampleTask


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


class Handler(Protocol):
    """The work that a worker can do on a sample; its errors are reported to the ranks."""

    def open(self, job: str) -> tuple[int, str]:
        """Open what the job describes; return the number of samples and the fingerprint."""

    @property
    def looks_up(self) -> bool:
        """Return whether costs need only be looked up, so that a lease is measured at once."""

    def look_up(self, refs: Sequence[SampleRef]) -> list[Probed]:
        """Return the costs of samples where `looks_up` says so."""

    def file_of(self, ref: SampleRef) -> str:
        """Return the file that a sample is in, empty where the source does not say."""

    def key(self, ref: SampleRef) -> str:
        """Return a sample's name."""

    def expect(self, tasks: Iterable[SampleTask]) -> None:
        """Take note of what is asked for next, in this order: threads may begin with it.

        Before a task that is to be alone is asked for, nothing else may be in work.
        """

    def probe(self, ref: SampleRef, epoch: int) -> Probed | Decoded:
        """Measure a sample; where that takes decoding it, return it decoded."""

    def decode(self, ref: SampleRef, epoch: int) -> Decoded:
        """Decode a sample."""
