"""Cost profiles: what passes cost as a function of a microbatch's contents, read from JSON.

A profile is measured, or computed from shapes (`shape_profile`). Every cost is a function of the
microbatch's resources (tokens, token_pairs, tiles ...):

    {"placement": [0, 1],
     "passes": {"F": [{"fixed": 900, "per_thousand": {"tokens": 51200, "token_pairs": 12}},
                      {"points": {"tokens": [[0, 0], [1024, 40000], [4096, 200000]]}}],
                "B": [{"fixed": 1800}]},
     "ranks": 2, "p2p_ns": 4000, "collectives": {"CS": 20000},
     "buffers": {"activation": [{"per_thousand": {"tokens": 104448000}}]},
     "parameter_bytes": [1000, 1000]}

A list has one entry per stage (per rank for kinds that are divided over the ranks), or one for all.
Only placement and passes are required. All costs are integers, the same on every machine.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ..ir.kinds import is_ranked
from ..ir.typed_json import Whole, read_json
from .costs import Costs, Table

Resources = Mapping[str, int]
# Buffers of kinds that are divided over the ranks.
_RANK_BUFFERS = ("logits", "early", "words", "encoder", "features", "generator")
Points = tuple[tuple[Whole, Whole], ...]


class CostFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A cost, in ns or bytes, as a function of a microbatch's resources.

    It is the sum of `fixed`, of per_thousand x amount / 1000 rounded down, and for every resource
    in `points`, [amount, cost] pairs, of the cost interpolated linearly between them (as DistTrain,
    2024, section 3, does with measurements). Beyond the points the first or last piece continues.
    Raises ValueError for fewer than two points, or amounts that do not rise.
    """

    fixed: Whole = 0
    per_thousand: Mapping[str, Whole] = {}
    points: Mapping[str, Points] = {}

    def __post_init__(self) -> None:
        """Check that the points define a function."""
        for name, points in self.points.items():
            amounts = [amount for amount, _ in points]
            if len(amounts) < 2 or amounts != sorted(set(amounts)):
                got = [list(point) for point in points]
                raise ValueError(
                    f"points of {name} are {got}; give two or more [amount, cost], amounts rising"
                )

    def evaluate(self, resources: Resources) -> int:
        """Return the cost of a microbatch. Raises ValueError if it lacks a resource's amount.

        >>> CostFunction(10, {"tokens": 1500}).evaluate({"tokens": 3})
        14
        >>> steep = CostFunction(points={"tiles": ((0, 0), (4, 8), (8, 32))})
        >>> [steep.evaluate({"tiles": amount}) for amount in (2, 6, 9)]
        [4, 20, 38]
        """
        if missing := (self.per_thousand.keys() | self.points.keys()) - resources.keys():
            have = ", ".join(sorted(resources)) or "none"
            raise ValueError(
                f"the microbatch has no amount of {sorted(missing)[0]!r}; it has {have}"
            )
        linear = sum(rate * resources[name] for name, rate in self.per_thousand.items())
        pieces = (_interpolate(points, resources[name]) for name, points in self.points.items())
        return self.fixed + linear // 1000 + sum(pieces)


class CostProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The costs of all passes, transfers, collectives and buffers of a pipeline; see the module.

    Args:
        placement: The rank of each stage.
        passes: By kind, the costs of its passes, in ns: of each stage or rank, or one for all.
        ranks: Their number; default 0: the highest rank of `placement` plus one.
        p2p_ns: The time of a message between two ranks; default 0.
        collectives: By barrier, the time of its collective, in ns; default 0.
        buffers: By buffer, its sizes in bytes, as `passes`; default 0.
        parameter_bytes: Of each rank, or one for all; default 0.
        overlap: False if ranks wait for transfers and collectives; default True: beside the passes.

    Raises ValueError for tables of the wrong size.
    """

    placement: tuple[Whole, ...]
    passes: Mapping[str, tuple[CostFunction, ...]]
    ranks: Whole = 0
    p2p_ns: Whole = 0
    collectives: Mapping[str, Whole] = {}
    buffers: Mapping[str, tuple[CostFunction, ...]] = {}
    parameter_bytes: tuple[Whole, ...] = (0,)
    overlap: bool = True

    def __post_init__(self) -> None:
        """Check sizes, and fill in the number of ranks."""
        if not self.placement:
            raise ValueError("placement is empty; give the rank of each stage")
        needed = max(self.placement) + 1
        msgspec.structs.force_setattr(self, "ranks", self.ranks or needed)
        if self.ranks < needed:
            raise ValueError(
                f"placement has a stage on rank {needed - 1}; there are {self.ranks} ranks"
            )
        # Signs are the types' to check in JSON, and the simulator's in Python.
        for name, entries in (*self.passes.items(), *self.buffers.items()):
            want = self.rows(name)
            if len(entries) not in (1, want):
                raise ValueError(f"{name}: got {len(entries)} costs; give all {want}, or one")
        if len(self.parameter_bytes) not in (1, self.ranks):
            count = len(self.parameter_bytes)
            raise ValueError(
                f"parameter_bytes: got {count} entries; give all {self.ranks} ranks', or one"
            )

    def rows(self, name: str) -> int:
        """Return the number of entries of a kind or buffer: one per stage, or one per rank.

        >>> CostProfile((0, 1, 1, 0), {}).rows("F"), CostProfile((0, 1, 1, 0), {}).rows("S")
        (4, 2)
        """
        # `encoder_A` is the buffer of an encoder's layer.
        buffer = name in _RANK_BUFFERS or name.startswith("encoder_")
        return self.ranks if buffer or is_ranked(name) else len(self.placement)

    def entries(self, name: str) -> tuple[CostFunction, ...]:
        """Return the costs of a kind or buffer, one for each of its rows."""
        functions = self.passes.get(name) or self.buffers[name]
        return functions * self.rows(name) if len(functions) == 1 else functions


def profile_costs(profile: CostProfile, microbatches: Sequence[Resources]) -> Costs:
    """Return the costs of these microbatches, each given by its resources.

    >>> passes = {"F": (CostFunction(0, {"tokens": 2000}),), "B": (CostFunction(7),)}
    >>> profile_costs(CostProfile((0,), passes), [{"tokens": 5}, {"tokens": 6}]).pass_ns
    {'F': [[10, 12]], 'B': [[7, 7]]}
    """

    def tables(names: Iterable[str]) -> dict[str, Table]:
        return {
            name: [[entry.evaluate(m) for m in microbatches] for entry in profile.entries(name)]
            for name in names
        }

    parameters = profile.parameter_bytes
    return Costs(
        pass_ns=tables(profile.passes),
        p2p_ns=profile.p2p_ns,
        collective_ns=dict(profile.collectives),
        buffer_bytes=tables(profile.buffers) or {"activation": 1},
        parameter_bytes=parameters * profile.ranks if len(parameters) == 1 else parameters,
        overlap=profile.overlap,
    )


def dump_profile(profile: CostProfile) -> str:
    """Return a profile as JSON; `load_profile` reads it."""
    return msgspec.json.format(msgspec.json.encode(profile), indent=1).decode()


def load_profile(text: str) -> CostProfile:
    """Return the profile that JSON text holds.

    Raises ValueError, in one line that names the field, its value and what is allowed, for unknown
    or missing fields, NaN, fractions, negative numbers, and lists that leave out a stage.

    >>> load_profile('{"placement": [0], "passes": {"F": [{"fixed": -1}]}}')
    Traceback (most recent call last):
    ...
    ValueError: the cost profile: passes.F[0].fixed is -1; expected int >= 0
    """
    return read_json(text, CostProfile, "the cost profile")


def _interpolate(points: Points, amount: int) -> int:
    """Return the cost of an amount on the line through the points around it, 0 or more.

    >>> _interpolate(((2, 10), (4, 30)), 1), _interpolate(((2, 10), (4, 30)), 0)
    (0, 0)
    """
    after = bisect_right(points, amount, key=lambda point: point[0])
    # Outside the points the nearest piece continues.
    first = min(max(after - 1, 0), len(points) - 2)
    (start, low), (end, high) = points[first : first + 2]
    return max(0, low + (amount - start) * (high - low) // (end - start))
