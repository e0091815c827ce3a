"""The ledger: the resume state of a loader or sampler, as a few JSON values.

There is one format for the three that write one; `kind` says which it was. All kinds hold the
format's version, the shuffle's seed and the data's identity; the kinds that plan also hold what
decides the plan. A ledger says what `next()` has returned, never what was only prefetched.

Who reads one back believes nothing in it: types and ranges are checked, and by a digest that no
field was changed; the modules of the positions compare them with the loader and its data.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec

from ...workers.batches.envelope import ReaderPosition
from ...workers.sources.data_identity import KnownData

LEDGER_VERSION = 8
# Whole numbers that survive JSON wherever it is read.
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Positive = Annotated[int, msgspec.Meta(ge=1, lt=2**53)]
# The seeds that torch draws, and those that a plan may have.
DrawnSeed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Kind = Literal["balanced", "plain", "sampler", "stream"]
WRITERS: dict[Kind, str] = {
    "balanced": "a DataLoader with balance",
    "plain": "a DataLoader without balance",
    "sampler": "a BalancedBatchSampler",
    "stream": "a DataLoader with balance over a stream",
}
# The field with the digest of all others, which tells whether one was changed after it was written.
# States of users' objects are left out: they are theirs to check, and may come back as other types.
CHECK = "check"
# Fields that say nothing of a position, or are checked before it is read.
_APART = ("version", "kind", CHECK)
# Fields, here or inside readers, that hold states of users' objects: only if there are some counts.
_STATES = ("sampler", "iterator", "dataset")
# In errors, for the field `digest`, which no user gives.
PLAN_OPTIONS = "ranks, budgets and other options of the plan"
STEP = "samples_per_step (auto's is batch size x accumulated batches x ranks)"
GROWING = "DataLoader(growing_data=True)"


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
    microbatches every rank has been given; costs: a digest of what the window's samples cost where
    the position is inside it (with `digest` it decides what was delivered), else ""; served: how
    many ranks of a process that plays them all have been given one more; holes: ordinals of the
    samples that could not be used, of all ranks, in a step that was begun; left_out: how many those
    and all before them in this epoch are; unusable: without those that were to be left out;
    label_tokens: the resource that counts them, "batch" where ranks count them in their batches, ""
    where nothing does, and ", shift_labels=False" behind it where that is said; auto: what
    balance="auto" has found, "" of any other.
    """

    kind = "balanced"
    window_step: Count
    microbatch: Count
    costs: str
    samples_per_step: Positive
    mode: str
    ranks: Positive
    served: Count
    holes: tuple[Count, ...]
    left_out: Count
    unusable: Count
    label_tokens: str
    auto: str


@dataclass(frozen=True, slots=True)
class SamplerState:
    """The states of a user's sampler and of its iterator; None for one without state_dict().

    drawn: the batches of indices that they have given, and that were not handed out; is_over: they
    have no more.
    """

    sampler: Any
    iterator: Any
    drawn: tuple[Any, ...]
    is_over: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainLedger(Ledger):
    """The position of a DataLoader without balance; of the next epoch, once one is over.

    worker_seed: what the workers are seeded with; generators: packed states of what it and the
    order are drawn from, when the sampler began; batches: how many were handed out; waiting: the
    numbers of batches before those that were not (in_order=False); left_out: samples; order: what
    decides the sampler's order (`plain/order.py`), None where nothing was drawn yet; sampler: its
    state, if it has one; readers: of a stream, or of a data set with a state, one for each worker;
    turn: the reader whose batch comes next. States are what users' objects return: they may be
    large, and no JSON.
    """

    kind = "plain"
    seed: DrawnSeed | None
    worker_seed: DrawnSeed | None
    generators: tuple[str, ...]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLedger(Ledger):
    """The position of one rank of a DataLoader with balance over a stream.

    digest: of the PlanConfig; workers: of the rank; microbatch: how many of the step's it has been
    given; left_out: samples of all ranks before the step; stream: a PlainLedger, as it was written,
    of the rank's packs before the step.
    """

    kind = "stream"
    epoch: Count
    digest: str
    rank: Count
    ranks: Positive
    workers: Count
    step: Count
    microbatch: Count
    left_out: Count
    stream: dict[str, Any]


def write_ledger(ledger: Ledger) -> dict[str, Any]:
    """Return a ledger as JSON values (except for states of users' objects).

    >>> ledger = SamplerLedger(
    ...     seed=7, samples=9, data="costs", planner=1, epoch=0, shuffle=True, digest="d", start=6,
    ...     step=2, before=2, given=3,
    ... )
    >>> [(name, value) for name, value in write_ledger(ledger).items() if name != "digest"][:4]
    [('version', 8), ('kind', 'sampler'), ('seed', 7), ('samples', 9)]
    """
    values = {field.name: getattr(ledger, field.name) for field in fields(ledger)}
    listed = {
        name: [_plain(inner) for inner in v] if isinstance(v, tuple) else _plain(v)
        for name, v in values.items()
    }
    return with_digest({"version": LEDGER_VERSION, "kind": ledger.kind, **listed})


def _plain(value: Any) -> Any:
    """Return a record inside a ledger as a dict; what is inside that is left as it is."""
    if not isinstance(value, ReaderPosition | SamplerState):
        return value
    return {field.name: getattr(value, field.name) for field in fields(value)}


def with_digest(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ledger's values with their digest.

    >>> is_as_written(with_digest({"version": 3, "kind": "plain", "epoch": 7}))
    True
    """
    named = {name: value for name, value in state.items() if name != CHECK}
    return {**named, CHECK: _digest(named)}


def is_as_written(state: Mapping[str, Any]) -> bool:
    """Return whether no field was changed after the digest was made."""
    return state.get(CHECK) == _digest(state)


def _digest(state: Mapping[str, Any]) -> str:
    named = {name: _digested(name, value) for name, value in state.items() if name not in _APART}
    return hashlib.blake2b(json.dumps(named, sort_keys=True).encode(), digest_size=8).hexdigest()


def _digested(name: str, value: Any) -> Any:
    """Return the part of a value that is the same before and after JSON, pickle or torch.save."""
    if name in _STATES:
        return value is None
    if isinstance(value, Mapping):
        return {key: _digested(key, inner) for key, inner in value.items()}
    return [_digested("", inner) for inner in value] if isinstance(value, list | tuple) else value


L = TypeVar("L", bound=Ledger)
_KINDS: dict[str, type[Ledger]] = {
    cls.kind: cls for cls in (BalancedLedger, PlainLedger, SamplerLedger, StreamLedger)
}


def read_ledger(state: Any, needed: type[L]) -> L:
    """Return the ledger in `state`; ValueError where it is none, or of another kind or version."""
    ledger = parse_ledger(state)
    if not isinstance(ledger, needed):
        raise ValueError(
            f"the ledger's kind is {ledger.kind!r}, needed is {needed.kind!r}: it was written by "
            f"{WRITERS[ledger.kind]}, and only such a one can continue there"
        )
    if isinstance(ledger, PlannedLedger):
        # here: a plain loop imports nothing of planning
        from ...balancer.planning.problem.config import PLANNER_VERSION

        if ledger.planner != PLANNER_VERSION:
            raise ValueError(
                f"the ledger's planner is {ledger.planner}, this counterpoise has "
                f"{PLANNER_VERSION}, which plans otherwise: resume with the counterpoise that "
                "wrote it"
            )
    return ledger


def parse_ledger(state: Any) -> Ledger:
    """Return the ledger in `state`, whichever its kind and planner; ValueError if it is none.

    Also where a field is not as it was written; that it fits the data is the readers' to check.
    """
    version = state.get("version") if isinstance(state, dict) else None
    if type(version) is not int:
        raise ValueError("not a ledger of counterpoise: it has no version")
    if version < LEDGER_VERSION:
        raise ValueError(
            f"the ledger was written by an older counterpoise (its version is {version}; this one "
            f"reads {LEDGER_VERSION}), which kept other fields: start the epoch again"
        )
    if version > LEDGER_VERSION:
        raise ValueError(
            f"the ledger's version is {version}, and this counterpoise reads {LEDGER_VERSION}: "
            "resume with the counterpoise that wrote it"
        )
    kind = state.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(
            f"not a ledger of counterpoise: its kind is {kind!r}, known are {', '.join(_KINDS)}"
        )
    # here, as only a loop that is resumed reads one
    from ...balancer.protocol.records import read_record

    checked = {name: value for name, value in state.items() if name not in _APART}
    try:
        ledger = read_record(_KINDS[kind], checked, "ledger")
    except ValueError as error:  # first, since it names the field
        raise ValueError(f"not a ledger of counterpoise: {error}") from None
    if not is_as_written(state):
        raise ValueError(
            f"the ledger is not what its digest, ledger.{CHECK}, was made of: it was changed or "
            "damaged; load it as state_dict() returned it (set_epoch() begins another epoch)"
        )
    return ledger


def check_same(ledger: Ledger, current: Mapping[str, object]) -> None:
    """Raise ValueError with the names of fields that differ from what the loader has now."""
    if other := [name for name, value in current.items() if getattr(ledger, name) != value]:
        pairs = (f"{n} was {getattr(ledger, n)!r} and is {current[n]!r}" for n in other)
        same = ", ".join(other).replace("digest", PLAN_OPTIONS).replace("samples_per_step", STEP)
        raise ValueError(
            f"the ledger belongs to another order of samples ({'; '.join(pairs)}): resume with "
            f"the same {same}"
        )


def check_same_data(
    ledger: Ledger, now: KnownData, growing: bool | None = None, why_not: str = ""
) -> None:
    """Raise ValueError, with the field, for a ledger of other data.

    growing: whether the data may have become more since, None where no option says so; `why_not`
    says why the position cannot be gone on from then, "" if it can.
    """
    identity = now.identity
    if ledger.data == identity and ledger.samples == now.samples:
        return
    differs = f"data was {ledger.data!r} and is {identity!r}"
    if ledger.samples != now.samples:
        differs = f"samples was {ledger.samples} and is {now.samples}"
    reason = f"the ledger is of other data: its {differs}"
    if not growing or not _have_grown(ledger, now):
        hint = f"; {GROWING} goes on where they have only become more" if growing is False else ""
        raise ValueError(f"{reason}: resume with the same data set{hint}")
    if why_not:
        raise ValueError(f"{reason}, and {why_not}: begin the epoch again, or save between epochs")


def _have_grown(ledger: Ledger, now: KnownData) -> bool:
    """Return whether the ledger's samples are the first of those that there are now."""
    if ledger.samples is None or now.samples is None or now.samples <= ledger.samples:
        return False
    first = now.identity_of_first(ledger.samples)
    # Where the data cannot say what they were, their class is the same at least.
    identity = first if first is not None else now.identity.partition(" ")[0]
    return ledger.data == identity or (first is None and ledger.data.partition(" ")[0] == identity)
