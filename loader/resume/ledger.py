"""The ledger: the resume state of a loader or sampler, as a few JSON values.

There is one format for the three that write one; `kind` says which it was. All kinds hold the
format's version, the shuffle's seed and the data's identity; the kinds that plan also hold what
decides the plan. A ledger says what `next()` has returned, never what was only prefetched.

`reading.py` reads one back, and believes nothing in it.
"""

from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from ...workers.batches.envelope import ReaderPosition
from .digest import with_digest

LEDGER_VERSION = 5
# Whole numbers that survive JSON wherever it is read.
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Positive = Annotated[int, msgspec.Meta(ge=1, lt=2**53)]
# The seeds that torch draws, and those that a plan may have.
DrawnSeed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Kind = Literal["balanced", "plain", "sampler"]
WRITERS: dict[Kind, str] = {
    "balanced": "a DataLoader with balance",
    "plain": "a DataLoader without balance",
    "sampler": "a BalancedBatchSampler",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """A position in an epoch, and what must be the same to continue there.

    seed: what the epoch's order was drawn from; None where the caller's own sampler draws it.
    samples: of the data set; None of a stream, and as long as only workers elsewhere know. data:
    which data they are of, see workers/sources/data_identity.py.
    """

    kind: ClassVar[Kind]
    seed: int | None
    samples: Count | None
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLedger(Ledger):
    """A position in a planned epoch.

    digest: of the PlanConfig; start: the first ordinal of the window that `step` is in.
    """

    planner: Count
    epoch: Count
    shuffle: bool
    digest: str
    start: Count
    step: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedLedger(PlannedLedger):
    """The position of a DataLoader with balance; the same on every rank.

    window_step: the first step of the window that `step` is in; microbatch: how many of the step's
    microbatches every rank has been given; served: how many ranks of a process that plays them all
    have been given one more; holes: ordinals of the samples that could not be used, of all ranks,
    in the steps of this epoch that were begun; label_tokens: the resource that counts them,
    "batch" where ranks count them in their batches, "" where nothing does; auto: what
    balance="auto" has found, "" of any other.
    """

    kind = "balanced"
    window_step: Count
    microbatch: Count
    samples_per_step: Positive
    mode: str
    ranks: Positive
    served: Count
    holes: tuple[Count, ...]
    label_tokens: str
    auto: str


@dataclass(frozen=True, slots=True)
class SamplerState:
    """The states of a user's sampler and of its iterator; None for one without state_dict()."""

    sampler: Any
    iterator: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainLedger(Ledger):
    """The position of a DataLoader without balance; of the next epoch, once one is over.

    worker_seed: what the workers are seeded with; batches: how many were handed out; waiting: the
    numbers of batches before those that were not (in_order=False); left_out: samples; order: what
    decides the sampler's order (`plain/order.py`), None where nothing was drawn yet; sampler: its
    state, if it has one; readers: of a stream, or of a data set with a state, one for each worker;
    turn: the reader whose batch comes next. States are what users' objects return: they may be
    large, and no JSON.
    """

    kind = "plain"
    seed: DrawnSeed | None
    worker_seed: DrawnSeed | None
    batches: Count
    waiting: tuple[Count, ...]
    batch_size: Positive | None
    left_out: Count
    order: str | None
    sampler: SamplerState | None
    turn: Count
    readers: tuple[ReaderPosition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerLedger(PlannedLedger):
    """The position of one rank's BalancedBatchSampler.

    step: the first step of the window; before: this rank's microbatches before the window; given:
    those up to here.
    """

    kind = "sampler"
    before: Count
    given: Count


def write_ledger(ledger: Ledger) -> dict[str, Any]:
    """Return a ledger as JSON values (except for states of users' objects).

    >>> ledger = SamplerLedger(
    ...     seed=7, samples=9, data="costs", planner=1, epoch=0, shuffle=True, digest="d", start=6,
    ...     step=2, before=2, given=3,
    ... )
    >>> [(name, value) for name, value in write_ledger(ledger).items() if name != "digest"][:4]
    [('version', 5), ('kind', 'sampler'), ('seed', 7), ('samples', 9)]
    """
    values = {field.name: getattr(ledger, field.name) for field in fields(ledger)}
    listed = {
        name: [_plain(each) for each in v] if isinstance(v, tuple) else _plain(v)
        for name, v in values.items()
    }
    return with_digest({"version": LEDGER_VERSION, "kind": ledger.kind, **listed})


def _plain(value: Any) -> Any:
    """Return a record inside a ledger as a dict; what is inside that is left as it is."""
    if not isinstance(value, ReaderPosition | SamplerState):
        return value
    return {field.name: getattr(value, field.name) for field in fields(value)}
