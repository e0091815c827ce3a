"""Cost profiles: what passes cost as a function of what is in the microbatch.

A profile is plain JSON, measured or computed from shapes (`shape_profile`). Every cost is linear in
the microbatch's resources (tokens, pairs of tokens, tiles ...):

    {"ranks": 2, "placement": [0, 1],
     "passes": {"F": [{"fixed": 900, "per_thousand": {"tokens": 51200}}, ...one for each stage],
                "B": [{"fixed": 1800}]},
     "p2p_ns": 4000, "collectives": {"CS": 20000},
     "buffers": {"activation": [{"per_thousand": {"tokens": 104448000}}]},
     "parameter_bytes": [1000, 1000]}

A list has one entry per stage (per rank for kinds cut over the ranks), or one for all. A cost is
fixed + per_thousand x amount / 1000, rounded down: integers, the same on every machine.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..ir.kinds import is_kind, kind
from .costs import Costs, Table, expand

Resources = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Linear:
    """A cost, in ns or bytes: fixed, and so much for every thousand units of each resource."""

    fixed: int = 0
    per_thousand: Mapping[str, int] = field(default_factory=dict)

    def of(self, resources: Resources) -> int:
        """The cost of a microbatch. Raises ValueError if it does not say a resource's amount.

        >>> Linear(10, {"tokens": 1500}).of({"tokens": 3})
        14
        """
        if missing := set(self.per_thousand) - set(resources):
            have = ", ".join(sorted(resources)) or "none"
            raise ValueError(f"the microbatch does not say its {sorted(missing)[0]}; it has {have}")
        extra = sum(rate * resources[name] for name, rate in self.per_thousand.items())
        return self.fixed + extra // 1000


@dataclass(frozen=True, slots=True)
class CostProfile:
    """What everything costs; see the module. Raises ValueError where it contradicts itself."""

    ranks: int
    placement: tuple[int, ...]
    passes: Mapping[str, tuple[Linear, ...]]
    p2p_ns: int = 0
    collectives: Mapping[str, int] = field(default_factory=dict)
    buffers: Mapping[str, tuple[Linear, ...]] = field(default_factory=dict)
    parameter_bytes: tuple[int, ...] = (0,)
    overlap: bool = True

    def __post_init__(self) -> None:
        """Check sizes and signs."""
        for name, entries in (*self.passes.items(), *self.buffers.items()):
            ranked = (is_kind(name) and kind(name).scope == "rank") or name == "logits"
            want = self.ranks if ranked else len(self.placement)
            if len(entries) not in (1, want):
                raise ValueError(f"{name}: costs of {len(entries)} stages; give all {want}, or 1")
            for entry in entries:
                numbers = [entry.fixed, *entry.per_thousand.values()]
                expand(f"costs of {name}", numbers, len(numbers), 1)
        expand("p2p_ns", self.p2p_ns, 1, 1)
        for name, ns in self.collectives.items():
            expand(f"collective {name}", ns, 1, 1)
        if len(self.parameter_bytes) not in (1, self.ranks):
            given = len(self.parameter_bytes)
            raise ValueError(f"parameter_bytes: {given} entries for {self.ranks} ranks")


def profile_costs(profile: CostProfile, microbatches: Sequence[Resources]) -> Costs:
    """The costs of these microbatches, given by their resources.

    >>> profile = CostProfile(1, (0,), {"F": (Linear(0, {"tokens": 2000}),), "B": (Linear(7),)})
    >>> profile_costs(profile, [{"tokens": 5}, {"tokens": 6}]).pass_ns
    {'F': [[10, 12]], 'B': [[7, 7]]}
    """

    def table(entries: tuple[Linear, ...], rows: int) -> Table:
        spread = entries * rows if len(entries) == 1 else entries
        return [[entry.of(m) for m in microbatches] for entry in spread]

    def rows(name: str) -> int:
        ranked = (is_kind(name) and kind(name).scope == "rank") or name == "logits"
        return profile.ranks if ranked else len(profile.placement)

    parameters = profile.parameter_bytes
    return Costs(
        pass_ns={name: table(entries, rows(name)) for name, entries in profile.passes.items()},
        p2p_ns=profile.p2p_ns,
        collective_ns=dict(profile.collectives),
        buffer_bytes={name: table(entries, rows(name)) for name, entries in profile.buffers.items()}
        or {"activation": 1},
        parameter_bytes=parameters * profile.ranks if len(parameters) == 1 else parameters,
        overlap=profile.overlap,
    )


def dump_profile(profile: CostProfile) -> str:
    """A profile as JSON."""
    return json.dumps(asdict(profile), indent=1)


def load_profile(text: str) -> CostProfile:
    """Read a profile from JSON.

    Raises ValueError, in one line, for what is not one: other keys, NaN, fractions, negative
    numbers, lists that leave out a stage.

    >>> load_profile('{"ranks": 1, "placement": [0], "passes": {"F": [{"fixed": NaN}]}}')
    Traceback (most recent call last):
    ...
    ValueError: the profile has NaN; give whole numbers
    """

    def refuse(word: str) -> Any:
        raise ValueError(f"the profile has {word}; give whole numbers")

    try:
        raw = json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise ValueError(f"the profile is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ValueError("the profile must be a JSON object")
    known = set(CostProfile.__dataclass_fields__)
    if bad := set(raw) - known:
        raise ValueError(
            f"the profile has {sorted(bad)[0]!r}; known are {', '.join(sorted(known))}"
        )
    if missing := {"ranks", "placement", "passes"} - set(raw):
        raise ValueError(f"the profile has no {sorted(missing)[0]!r}")
    _whole("ranks", [raw["ranks"]])
    for name in ("placement", "parameter_bytes"):
        if name in raw:
            raw[name] = tuple(_whole(name, raw[name]))
    for name in ("passes", "buffers"):
        raw[name] = {key: _entries(key, value) for key, value in _object(name, raw).items()}
    _object("collectives", raw)
    return CostProfile(**raw)


def _object(name: str, raw: dict[str, Any]) -> dict[str, Any]:
    value = raw.get(name, {})
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object, by name")
    return value


def _whole(name: str, values: Any) -> list[int]:
    if not isinstance(values, list) or any(type(value) is not int or value < 0 for value in values):
        raise ValueError(f"{name}: got {values}; give whole numbers of 0 or more")
    return values


def _entries(name: str, values: Any) -> tuple[Linear, ...]:
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise ValueError(f"{name}: give a list of costs, one for each stage, or one for all")
    for value in values:
        if bad := set(value) - {"fixed", "per_thousand"}:
            raise ValueError(f"{name}: a cost has {sorted(bad)[0]!r}; give fixed and per_thousand")
        if not isinstance(value.get("per_thousand", {}), dict):
            raise ValueError(f"{name}: per_thousand must be an object, by resource")
    return tuple(Linear(**value) for value in values)
