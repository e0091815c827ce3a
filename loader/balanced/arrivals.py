"""A microbatch that the local loop has got from a worker; Arrival is one from a balancer."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...balancer.protocol.parts import EpochPosition, Hole, Weights
from ...workers.batches.planned_reader import Made

if TYPE_CHECKING:
    from ...balancer.protocol.rank_session import Arrival


@dataclass(frozen=True, slots=True)
class MicrobatchFacts:
    """What is known of a microbatch beside its batch, as Batch has it of one from a balancer."""

    rank: int
    step: int
    microbatch: int
    microbatches: int
    weights: Weights
    costs: tuple[int, ...]
    after: EpochPosition
    keys: tuple[str, ...] = ()
    holes: tuple[Hole, ...] = ()
    step_holes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LocalArrival:
    """A microbatch that a worker has made; made: None where it was handed over already."""

    batch: MicrobatchFacts
    made: Made | None = None


def without_payload(arrival: "Arrival | LocalArrival") -> "Arrival | LocalArrival":
    """Return an arrival whose samples are not needed any more."""
    if isinstance(arrival, LocalArrival):
        return replace(arrival, made=None)
    return replace(arrival, payloads=())
