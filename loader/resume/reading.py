"""Reads ledgers, and believes nothing in them.

The types and ranges of all fields are checked, that they can be true together (`consistency.py`),
and that none was changed (`digest.py`); the modules of the positions compare them with the
loader and its data. Every error is a ValueError that names the field.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from .consistency import check_consistent
from .digest import CHECK, is_as_written
from .ledger import (
    LEDGER_VERSION,
    WRITERS,
    BalancedLedger,
    Ledger,
    PlainLedger,
    PlannedLedger,
    SamplerLedger,
)

# The names that users know, of fields that they do not give themselves.
_MEANINGS = {
    "digest": "ranks, budgets and other options of the plan",
}
L = TypeVar("L", bound=Ledger)
_KINDS: dict[str, type[Ledger]] = {
    each.kind: each for each in (BalancedLedger, PlainLedger, SamplerLedger)
}


def read_ledger(state: Any, wanted: type[L]) -> L:
    """Return the ledger in `state`; ValueError where it is none, or of another kind or version."""
    ledger = parse_ledger(state)
    if not isinstance(ledger, wanted):
        raise ValueError(
            f"the ledger's kind is {ledger.kind!r}, needed is {wanted.kind!r}: it was written by "
            f"{WRITERS[ledger.kind]}, and only such a one can continue there"
        )
    if isinstance(ledger, PlannedLedger):
        _check_planner(ledger)
    return ledger


def _check_planner(ledger: PlannedLedger) -> None:
    # here: a plain loop imports nothing of planning
    from ...balancer.planning.problem.config import PLANNER_VERSION

    if ledger.planner != PLANNER_VERSION:
        raise ValueError(
            f"the ledger's planner is {ledger.planner}, this counterpoise has {PLANNER_VERSION}, "
            "which plans otherwise: resume with the counterpoise that wrote it"
        )


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

    found = {name: value for name, value in state.items() if name not in ("version", "kind", CHECK)}
    try:
        ledger = read_record(_KINDS[kind], found, "ledger")
    except ValueError as error:
        raise ValueError(f"not a ledger of counterpoise: {error}") from None
    # First: what contradicts itself is named in words that its owner understands.
    check_consistent(ledger)
    if not is_as_written(state):
        raise ValueError(
            f"the ledger is not what its digest, ledger.{CHECK}, was made of: it was changed or "
            "damaged; load it as state_dict() returned it (set_epoch() begins another epoch)"
        )
    return ledger


def check_same(ledger: Ledger, current: Mapping[str, object]) -> None:
    """Raise ValueError with the names of fields that differ from what the loader has now."""
    other = [name for name, value in current.items() if getattr(ledger, name) != value]
    if other:
        pairs = (f"{name} was {getattr(ledger, name)!r} and is {current[name]!r}" for name in other)
        raise ValueError(
            f"the ledger belongs to another order of samples ({'; '.join(pairs)}): resume with "
            f"the same {', '.join(_MEANINGS.get(name, name) for name in other)}"
        )
