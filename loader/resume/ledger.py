"""The ledger: the resume state of a loader or sampler, as a few JSON values.

There is one format for the three that write one; `kind` says which it was. All kinds hold the
format's version and the shuffle's seed; the kinds that plan also hold what decides the plan. A
ledger says what `next()` has returned, never what was only prefetched.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeVar

from ...balancer.planning.problem.config import PLANNER_VERSION

LEDGER_VERSION = 2
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

    planner: int = PLANNER_VERSION
    epoch: int
    shuffle: bool
    digest: str
    start: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedLedger(PlannedLedger):
    """The position of a DataLoader with balance; the same on every rank.

    window_step: the first step of the window that `step` is in; microbatch: how many of the step's
    microbatches every rank has been given; served: how many ranks of a process that plays them all
    have been given one more; holes: ordinals of the samples that could not be used, of all ranks,
    in the steps of this epoch that were begun.
    """

    kind = "balanced"
    window_step: int
    microbatch: int
    samples_per_step: int
    mode: str
    ranks: int
    served: int = 0
    holes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainLedger(Ledger):
    """The position of a DataLoader without balance: batches handed out, samples left out."""

    kind = "plain"
    batches: int
    batch_size: int | None
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerLedger(PlannedLedger):
    """The position of one rank's BalancedBatchSampler.

    step: the first step of the window; before: this rank's microbatches before the window; given:
    those up to here; samples: of the data set.
    """

    kind = "sampler"
    before: int
    given: int
    samples: int


# The names that users know, of fields that they do not give themselves.
_MEANINGS = {"digest": "ranks, budgets and other options of the plan", "samples": "costs"}
L = TypeVar("L", bound=Ledger)
_KINDS: dict[str, type[Ledger]] = {
    each.kind: each for each in (BalancedLedger, PlainLedger, SamplerLedger)
}


def write_ledger(ledger: Ledger) -> dict[str, Any]:
    """Return a ledger as JSON values.

    >>> write_ledger(PlainLedger(seed=7, batches=3, batch_size=4))
    {'version': 2, 'kind': 'plain', 'seed': 7, 'batches': 3, 'batch_size': 4, 'left_out': 0}
    """
    values = {field.name: getattr(ledger, field.name) for field in fields(ledger)}
    listed = {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}
    return {"version": LEDGER_VERSION, "kind": ledger.kind, **listed}


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
    return _KINDS[kind](**_checked(found, _KINDS[kind]))


def check_same(ledger: Ledger, current: Mapping[str, object]) -> None:
    """Raise ValueError with the names of fields that differ from what the loader has now."""
    other = [name for name, value in current.items() if getattr(ledger, name) != value]
    if other:
        pairs = (f"{name} was {getattr(ledger, name)!r} and is {current[name]!r}" for name in other)
        raise ValueError(
            f"the ledger belongs to another order of samples ({'; '.join(pairs)}): resume with "
            f"the same {', '.join(_MEANINGS.get(name, name) for name in other)}"
        )


def _checked(found: Mapping[str, Any], kind: type[Ledger]) -> dict[str, Any]:
    """Return the fields of a ledger as its class takes them; ValueError names one that is wrong."""
    known = {field.name: field.type for field in fields(kind)}
    for names, what in ((known.keys() - found, "lacks"), (found.keys() - known, "does not know")):
        if names:
            listed = ", ".join(sorted(map(str, names)))
            raise ValueError(f"not a ledger of counterpoise: {kind.kind!r} {what} {listed:.200}")
    checked = dict(found)
    for name, expected in known.items():
        value = found[name]
        if not _fits(value, expected):
            raise ValueError(
                f"not a ledger of counterpoise: {name} is {value!r:.80}, which is not "
                f"{getattr(expected, '__name__', expected)}"
            )
        checked[name] = tuple(value) if isinstance(value, list) else value
    return checked


def _fits(value: object, expected: Any) -> bool:
    """Return whether a JSON value can be a field of this type; counts are not negative."""
    if expected is int:
        return type(value) is int and value >= 0
    if expected == int | None:
        return value is None or type(value) is int
    if expected == tuple[int, ...]:
        return isinstance(value, list | tuple) and all(_fits(each, int) for each in value)
    return type(value) is expected
