"""Bring a cost profile up to what was measured, and tell a planner what passes take on average."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median_low
from typing import Any

from ..ir.passes import parse_pass
from ..simulation.cost_profile import CostFunction, CostProfile
from ..simulation.costs import Costs
from .observation import Key, Observation

_MILLION = 10**6


def scaled_profile(profile: CostProfile, window: Sequence[Observation]) -> CostProfile:
    """Return the profile with each stage's costs as many times as large as they were measured.

    The factor is the median over the window's steps. Where the profile has no time at all, passes
    cost what they took on average.
    """
    passes: dict[str, tuple[CostFunction, ...]] = {}
    for kind, entries in profile.passes.items():
        rows = entries * profile.rows(kind) if len(entries) == 1 else entries
        passes[kind] = tuple(_entry(e, f"{row}{kind}", window) for row, e in enumerate(rows))
    return CostProfile(
        profile.placement,
        passes,
        profile.ranks,
        profile.p2p_ns,
        profile.collectives,
        profile.buffers,
        profile.parameter_bytes,
        profile.overlap,
        profile.contention,
    )


def _entry(entry: CostFunction, key: Key, window: Sequence[Observation]) -> CostFunction:
    known = [one for one in window if one.passes.get(key)]
    if not known:
        return entry
    if not all(one.predicted[key] for one in known):
        return CostFunction(_mean_ns(key, known))
    factor = median_low(one.measured[key] * _MILLION // one.predicted[key] for one in known)
    return CostFunction(
        entry.fixed * factor // _MILLION,
        {name: rate * factor // _MILLION for name, rate in entry.per_thousand.items()},
        {
            name: tuple((amount, ns * factor // _MILLION) for amount, ns in points)
            for name, points in entry.points.items()
        },
    )


def mean_costs(profile: CostProfile, window: Sequence[Observation]) -> Costs:
    """Return the mean time of each kind's passes by stage or rank, the median of the steps.

    Transfers and collectives are the profile's.
    """
    keys = {key for one in window for key in one.passes}
    times: dict[str, list[int]] = {}
    for key in keys:
        what = parse_pass(key)
        found = times.setdefault(what.kind, [0] * profile.rows(what.kind))
        found[what.stage] = _mean_ns(key, window)
    ordered: Mapping[str, list[int]] = dict(sorted(times.items()))
    return Costs(ordered, p2p_ns=profile.p2p_ns, collective_ns=dict(profile.collectives))


def _mean_ns(key: Key, window: Sequence[Observation]) -> int:
    return median_low(one.measured[key] // one.passes[key] for one in window if key in one.passes)


def nearby(costs: Costs) -> Iterator[Costs]:
    """Yield mean costs, and some that differ from them by less than measurements do.

    Planners search from where the costs put them, and a per cent can be the difference between two
    local optima. Times of a kind that differ by less than 5 % are also taken for one, and all are
    rounded to 5 and to 4 binary digits.

    >>> [one.pass_ns["F"] for one in nearby(Costs({"F": [1000, 1030, 1500]}))]
    [[1000, 1030, 1500], [1015, 1015, 1500], [992, 1024, 1472], [1024, 1024, 1536]]
    """
    yield costs
    for change in (_alike, partial(_rounded, digits=5), partial(_rounded, digits=4)):
        yield replace(costs, pass_ns={kind: change(row) for kind, row in costs.pass_ns.items()})


def _alike(row: Any) -> list[int]:
    """Return times with each replaced by the mean of those that are up to 5 % above the least."""
    found: dict[int, int] = {}
    rest = sorted(row)
    while rest:
        group = [ns for ns in rest if 100 * ns <= 105 * rest[0]]
        found |= dict.fromkeys(group, sum(group) // len(group))
        rest = rest[len(group) :]
    return [found[ns] for ns in row]


def _rounded(row: Any, digits: int) -> list[int]:
    """Return times rounded to a number of binary digits."""
    units = [1 << max(0, ns.bit_length() - digits) for ns in row]
    return [(ns + unit // 2) // unit * unit for ns, unit in zip(row, units, strict=True)]
