"""Defines what a worker can do with samples: what the loop asks for, and the results."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from ...balancer.protocol.messages import Probed, SampleRef
from ...balancer.protocol.worker_session import SampleTask

# Returns the batches of microbatches of these sizes, each as `encode_packed` does, None where it
# makes none of these samples.
LayOut = Callable[[Sequence[Any], Sequence[int]], Sequence[tuple[bytes, Sequence[Any]]] | None]


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


class Loaded(NamedTuple):
    """A sample that is loaded and not packed: its name, itself, and `load_s` as in Decoded."""

    key: str
    sample: Any
    load_s: float


class Handler(Protocol):
    """The work that a worker can do on a sample; its errors are reported to the ranks."""

    def open(self, job: str) -> tuple[int, str]:
        """Open what the job describes; return the number of samples and the fingerprint."""

    def uniform_cost(self) -> tuple[int, ...]:
        """Return what each sample of what is open costs; () where they differ, or may."""

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

    @property
    def lays_out(self) -> bool:
        """Return whether microbatches are laid out that a lease has all samples of."""

    def load(self, ref: SampleRef, epoch: int) -> Loaded:
        """Load a sample; to decode one is to load and to pack it."""

    def packed(self, loaded: Loaded) -> Decoded:
        """Return a sample that was loaded as it is decoded."""

    def laid_out(self, loaded: Sequence[Loaded], sizes: Sequence[int]) -> list[Decoded] | None:
        """Return the batches of microbatches of these sizes; None if some sample is unusual.

        A batch has no name and no cost.
        """
