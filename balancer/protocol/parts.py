"""What messages are made of: samples in leases and batches, holes, places in an epoch."""

from dataclasses import dataclass
from typing import Literal

Payloads = Literal["none", "one", "items"]


@dataclass(frozen=True, slots=True)
class SampleRef:
    """A sample in a lease: its ordinal and what the worker needs to find it.

    `index` is a position in the source; `pickled` is used instead by loops without balancing, whose
    sampler may yield anything (it never leaves the machine).
    """

    ordinal: int
    index: int
    pickled: bytes = b""


@dataclass(frozen=True, slots=True)
class BatchItem:
    """A sample in a delivered microbatch: its name and the layout of its payload frame."""

    ordinal: int
    key: str
    header: bytes


@dataclass(frozen=True, slots=True)
class Hole:
    """A sample that could not be used, and why."""

    ordinal: int
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Probed:
    """One result of a probe lease: name, cost per resource, expected payload size in bytes."""

    ordinal: int
    key: str
    cost: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Weights:
    """What a loss is divided by: samples and label tokens without holes, at three levels."""

    samples: int
    label_tokens: int
    rank_samples: int
    rank_label_tokens: int
    step_samples: int
    step_label_tokens: int


@dataclass(frozen=True, slots=True)
class EpochPosition:
    """A position in an epoch: the window (first ordinal, first step), the step, the microbatch."""

    start: int
    window_step: int
    step: int
    microbatch: int


NO_PLACE = EpochPosition(-1, -1, -1, -1)
