"""The ledger: the resume state of a loader or sampler, as a few JSON values.

There is one format for the three that write one; `kind` says which it was. All kinds hold the
format's version and the shuffle's seed; the kinds that plan also hold what decides the plan. A
ledger says what `next()` has returned, never what was only prefetched.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec

from ...balancer.planning.problem.config import PLANNER_VERSION
from ...balancer.protocol.records import read_record
from ...workers.batches.envelope import ReaderPosition

LEDGER_VERSION = 2
Count = Annotated[int, msgspec.Meta(ge=0)]
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
    """

    kind: ClassVar[Kind]
    seed: int | None


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
    in the steps of this epoch that were begun.
    """

    kind = "balanced"
    window_step: Count
    microbatch: Count
    samples_per_step: Count
    mode: str
    ranks: Count
    served: Count
    holes: tuple[Count, ...]


@dataclass(frozen=True, slots=True)
class SamplerState:
    """The states of a user's sampler and of its iterator; None for one without state_dict()."""

    sampler: Any
    iterator: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainLedger(Ledger):
    """The position of a DataLoader without balance; of the next epoch, once one is over.

    worker_seed: what the workers are seeded with; batches: how many were handed out; waiting: the
    numbers of batches before those that were not (in_order=False); length: of the data set, if it
    has one; left_out: samples; sampler: its state, if it has one;
    readers: of a stream, or of a data set with a state, one for each worker; turn: the reader whose
    batch comes next. States are what users' objects return: they may be large, and no JSON.
    """

    kind = "plain"
    worker_seed: int | None
    batches: Count
    waiting: tuple[Count, ...]
    batch_size: int | None
    length: int | None
    left_out: Count
    sampler: SamplerState | None
    turn: Count
    readers: tuple[ReaderPosition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerLedger(PlannedLedger):
    """The position of one rank's BalancedBatchSampler.

    step: the first step of the window; before: this rank's microbatches before the window; given:
    those up to here; samples: of the data set.
    """

    kind = "sampler"
    before: Count
    given: Count
    samples: Count


# The names that users know, of fields that they do not give themselves.
_MEANINGS = {
    "digest": "ranks, budgets and other options of the plan",
    "samples": "costs",
    "length": "data set",
}
L = TypeVar("L", bound=Ledger)
_KINDS: dict[str, type[Ledger]] = {
    each.kind: each for each in (BalancedLedger, PlainLedger, SamplerLedger)
}


def write_ledger(ledger: Ledger) -> dict[str, Any]:
    """Return a ledger as JSON values (except for states of users' objects).

    >>> ledger = SamplerLedger(
    ...     seed=7, planner=1, epoch=0, shuffle=True, digest="d", start=0, step=2,
    ...     before=0, given=3, samples=9,
    ... )
    >>> [(name, value) for name, value in write_ledger(ledger).items() if name != "digest"][:4]
    [('version', 2), ('kind', 'sampler'), ('seed', 7), ('planner', 1)]
    """
    values = {field.name: getattr(ledger, field.name) for field in fields(ledger)}
    listed = {
        name: [_plain(each) for each in v] if isinstance(v, tuple) else _plain(v)
        for name, v in values.items()
    }
    return {"version": LEDGER_VERSION, "kind": ledger.kind, **listed}


def _plain(value: Any) -> Any:
    """Return a record inside a ledger as a dict; what is inside that is left as it is."""
    if not isinstance(value, ReaderPosition | SamplerState):
        return value
    return {field.name: getattr(value, field.name) for field in fields(value)}


def read_ledger(state: Any, wanted: type[L]) -> L:
    """Return the ledger in `state`; ValueError where it is none, or of another kind or version."""
    ledger = parse_ledger(state)
    if not isinstance(ledger, wanted):
        raise ValueError(
            f"the ledger's kind is {ledger.kind!r}, needed is {wanted.kind!r}: it was written by "
            f"{WRITERS[ledger.kind]}, and only such a one can continue there"
        )
    if isinstance(ledger, PlannedLedger) and ledger.planner != PLANNER_VERSION:
        raise ValueError(
            f"the ledger's planner is {ledger.planner}, this counterpoise has {PLANNER_VERSION}, "
            "which plans otherwise: resume with the counterpoise that wrote it"
        )
    return ledger


def parse_ledger(state: Any) -> Ledger:
    """Return the ledger in `state`, whichever its kind and planner; ValueError if it is none."""
    version = state.get("version") if isinstance(state, dict) else None
    if type(version) is not int:
        raise ValueError("not a ledger of counterpoise: it has no version")
    if version < LEDGER_VERSION:
        raise ValueError(
            f"the ledger was written by an older counterpoise (format {version}; this one reads "
            f"{LEDGER_VERSION}), which kept other fields: start the epoch again"
        )
    if version > LEDGER_VERSION:
        raise ValueError(
            f"the ledger has format {version}, and this counterpoise reads {LEDGER_VERSION}: "
            "resume with the counterpoise that wrote it"
        )
    kind = state.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(
            f"not a ledger of counterpoise: its kind is {kind!r}, known are {', '.join(_KINDS)}"
        )
    found = {name: value for name, value in state.items() if name not in ("version", "kind")}
    try:
        return read_record(_KINDS[kind], found, "ledger")
    except ValueError as error:
        raise ValueError(f"not a ledger of counterpoise: {error}") from None


def check_same(ledger: Ledger, current: Mapping[str, object]) -> None:
    """Raise ValueError with the names of fields that differ from what the loader has now."""
    other = [name for name, value in current.items() if getattr(ledger, name) != value]
    if other:
        pairs = (f"{name} was {getattr(ledger, name)!r} and is {current[name]!r}" for name in other)
        raise ValueError(
            f"the ledger belongs to another order of samples ({'; '.join(pairs)}): resume with "
            f"the same {', '.join(_MEANINGS.get(name, name) for name in other)}"
        )
