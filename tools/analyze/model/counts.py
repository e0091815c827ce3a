"""Counts the data: samples by source, quantiles, the joint histogram, the heaviest samples."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from ....balancer.planning.kernels.arrays import Int64
from ....workers.sources.interface import DEFAULT_COST
from ..scan.rows import Failure, Rows

NAMED = 20  # keys of each kind that the report lists
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
CELLS = 24
Json = dict[str, Any]


def data_figures(rows: Rows, total: int, over: Int64) -> Json:
    """Return the figures of the data as they were found; total: samples of the whole data set.

    over: rows that exceed a budget.
    """
    repeated = duplicates(rows)
    analyzed, unreadable = len(rows) + len(rows.failures), len(rows.failures)
    return {
        "samples": total,
        "analyzed": analyzed,
        "usable": len(rows),
        "unreadable": unreadable,
        "costs_known": rows.resources != tuple(DEFAULT_COST),
        "unreadable_interval": share_interval(unreadable, analyzed),
        "truncated": sum(one.kind == "truncated" for one in rows.failures),
        "duplicate_keys": len(repeated),
        "duplicates": [rows.key(row) for row in repeated[:NAMED].tolist()],
        "over_budget": len(over),
        "sources": by_source(rows, repeated, over),
        "failures": failures(rows),
        "reasons": reasons(rows),
        "resources": quantiles(rows, whole=analyzed == total),
        "joint": joint(rows),
    }


def over_budget(rows: Rows, budgets: Mapping[str, int | None]) -> Int64:
    """Return the rows of which some cost exceeds its budget (None: no limit), ascending."""
    over = np.zeros(len(rows), bool)
    for name, budget in budgets.items():
        if budget is not None:
            over |= rows.column(name) > budget
    return np.flatnonzero(over)


def duplicates(rows: Rows) -> Int64:
    """Return the rows whose key an earlier row has, ascending."""
    first: dict[str, int] = {}
    found = [row for row, key in enumerate(rows.keys) if first.setdefault(key, row) != row]
    return np.array(found, np.int64)


def by_source(rows: Rows, repeated: Int64, over: Int64) -> list[Json]:
    """Return for every source the number of samples that are fine and of each problem, with keys.

    repeated, over: rows that are duplicates, and rows over a budget; a sample may be both.
    """
    total = Counter[str]()
    for number, found in enumerate(np.bincount(rows.source_of, minlength=len(rows.sources))):
        total[rows.sources[number]] += int(found)
    # Keys by source and problem: a source without a usable sample is listed, too.
    wrong: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for failure in rows.failures:
        wrong[failure.source][failure.kind].append(failure.key)
    for name, found in (("duplicate", repeated), ("over_budget", over)):
        for row in found.tolist():
            wrong[rows.sources[int(rows.source_of[row])]][name].append(rows.key(row))
    bad = np.zeros(len(rows), bool)
    bad[repeated] = bad[over] = True
    fine = np.bincount(rows.source_of[~bad], minlength=len(rows.sources))
    number_of = {name: number for number, name in enumerate(rows.sources)}
    return [
        {
            "source": name,
            "samples": total[name] + sum(len(wrong[name][k]) for k in ("unreadable", "truncated")),
            "fine": int(fine[number_of[name]]) if name in number_of else 0,
            "share": total[name] / max(1, len(rows)),
            "resources": _costs_of(rows, number_of.get(name, -1)),
            **{kind: len(wrong[name][kind]) for kind in KINDS},
            "keys": {kind: wrong[name][kind][:NAMED] for kind in KINDS if wrong[name][kind]},
        }
        for name in sorted({*total, *wrong}, key=lambda name: (-total[name], name))
    ]


def _costs_of(rows: Rows, number: int) -> Json:
    """Return of every resource a source's mean, median, p99 and share of all that samples cost."""
    chosen, found = rows.source_of == number, dict[str, Any]()
    for name in rows.resources if chosen.any() else ():
        every = rows.column(name)
        values, whole = np.sort(every[chosen]), int(every.sum())
        p50, p99 = (int(values[max(0, math.ceil(q * len(values)) - 1)]) for q in (0.5, 0.99))
        share = int(values.sum()) / whole if whole else 0.0
        found[name] = {"mean": float(values.mean()), "p50": p50, "p99": p99, "share": share}
    return found


KINDS = ("unreadable", "truncated", "shard", "duplicate", "over_budget")


def failures(rows: Rows) -> list[Json]:
    """Return the first failures of every source with their reasons."""
    seen, listed = Counter[str](), list[Json]()
    for one in rows.failures:
        seen[one.source] += 1
        if seen[one.source] <= NAMED and len(listed) < 10 * NAMED:
            listed.append(asdict(one))
    return listed


def reasons(rows: Rows) -> list[Json]:
    """Return the reasons why samples cannot be used, the most frequent first.

    Reasons that differ only in numbers and quoted names count as one.
    """
    alike: dict[tuple[str, str], list[Failure]] = defaultdict(list)
    for one in rows.failures:
        alike[one.kind, re.sub(r"[0-9]+|'[^']*'", "N", one.reason)].append(one)
    most = sorted(alike.values(), key=lambda found: (-len(found), found[0].key))
    return [
        {
            "count": len(found),
            "kind": found[0].kind,
            "reason": found[0].reason,
            "keys": [one.key for one in found[:NAMED]],
        }
        for found in most[:NAMED]
    ]


def quantiles(rows: Rows, whole: bool) -> Json:
    """Return p50, p90, p99, p999 (nearest rank), max, mean and sum of every resource.

    Unless the rows are the whole set, each quantile has a 95 % interval by order statistics.
    """
    report: Json = {}
    for name in rows.resources:
        values = np.sort(rows.column(name))
        ranks = {label: max(0, math.ceil(q * len(values)) - 1) for label, q in QUANTILES.items()}
        found: Json = {label: int(values[rank]) for label, rank in ranks.items()}
        found |= {"max": int(values[-1]), "mean": float(values.mean()), "sum": int(values.sum())}
        if not whole:
            found["intervals"] = {label: _order(values, q) for label, q in QUANTILES.items()}
        report[name] = found
    return report


def joint(rows: Rows) -> Json:
    """Return the histogram of tiles and tokens; the last cells are open. {} without both."""
    if not {"tiles", "tokens"} <= set(rows.resources):
        return {}
    tiles, tokens = rows.column("tiles"), rows.column("tokens")
    across, up = _edges(tokens), _edges(tiles)
    x = np.clip(np.searchsorted(across, tokens, side="right") - 1, 0, len(across) - 2)
    y = np.clip(np.searchsorted(up, tiles, side="right") - 1, 0, len(up) - 2)
    shape = (len(up) - 1, len(across) - 1)
    cells = np.bincount(y * shape[1] + x, minlength=shape[0] * shape[1]).reshape(shape)
    return {"tokens": across.tolist(), "tiles": up.tolist(), "counts": cells.tolist()}


def share_interval(found: int, count: int) -> list[float]:
    """Return the 95 % interval of a share, after Wilson (1927).

    >>> [round(end, 3) for end in share_interval(0, 100)]
    [0.0, 0.037]
    """
    z = 1.96
    middle = (found + z * z / 2) / (count + z * z)
    half = z * float(np.sqrt(found * (count - found) / count + z * z / 4)) / (count + z * z)
    return [max(0.0, middle - half), min(1.0, middle + half)]


def heaviest(rows: Rows, work: Int64, most: int = NAMED) -> list[Json]:
    """Return the samples of most work, heaviest first; work (n,) is of each sample."""
    top = np.argsort(-work, kind="stable")[:most].tolist()
    mean = max(1.0, float(work.mean()))
    return [
        {
            "key": rows.key(row),
            "source": rows.sources[int(rows.source_of[row])],
            **{
                name: int(value)
                for name, value in zip(rows.resources, rows.costs[row], strict=True)
            },
            "times_mean": float(work[row]) / mean,
        }
        for row in top
    ]


def _edges(values: Int64) -> Int64:
    """Return whole-number cell edges from zero to just above the 99.9th percentile."""
    top = int(np.quantile(values, 0.999)) + 1
    width = max(1, -(-top // CELLS))
    return np.arange(0, top + width, width, dtype=np.int64)


def _order(values: Int64, q: float) -> list[int]:
    off = 1.96 * np.sqrt(len(values) * q * (1 - q))
    low, high = q * len(values) - off, q * len(values) + off
    return [
        int(values[int(np.clip(at, 0, len(values) - 1))]) for at in (np.floor(low), np.ceil(high))
    ]
