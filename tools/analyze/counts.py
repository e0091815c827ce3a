"""Counts the data: samples by source, why some cannot be used, quantiles, the heaviest samples."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...balancer.planning.kernels.arrays import Int64
from ...workers.sources.interface import DEFAULT_COST
from .scan.rows import Failure, Rows

NAMED = 20  # keys of each kind that the report lists
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
KINDS = ("unreadable", "truncated", "shard", "duplicate", "over_budget")
Json = dict[str, Any]


def data_figures(rows: Rows, total: int, budgets: Mapping[str, int]) -> Json:
    """Return the figures of the data as they were found; total: samples of the whole data set.

    budgets: the most of a cost; samples that exceed one alone are counted.
    """
    repeated, over = duplicates(rows), over_budget(rows, budgets)
    return {
        "samples": total,
        "analyzed": len(rows) + len(rows.failures),
        "usable": len(rows),
        "unreadable": len(rows.failures),
        "costs_known": rows.resources != tuple(DEFAULT_COST),
        "truncated": sum(failure.kind == "truncated" for failure in rows.failures),
        "duplicate_keys": len(repeated),
        "over_budget": len(over),
        "sources": by_source(rows, repeated, over),
        "reasons": reasons(rows),
        "resources": {name: _quantiles(rows.column(name)) for name in rows.resources},
    }


def over_budget(rows: Rows, budgets: Mapping[str, int]) -> Int64:
    """Return the rows of which some cost exceeds its budget, ascending."""
    over = np.zeros(len(rows), bool)
    for name, budget in budgets.items():
        over |= rows.column(name) > budget
    return np.flatnonzero(over)


def duplicates(rows: Rows) -> Int64:
    """Return the rows whose key an earlier row has, ascending."""
    first: dict[str, int] = {}
    repeated = [row for row, key in enumerate(rows.keys) if first.setdefault(key, row) != row]
    return np.array(repeated, np.int64)


def by_source(rows: Rows, repeated: Int64, over: Int64) -> list[Json]:
    """Return for every source the number of samples that are fine and of each problem, with keys.

    repeated, over: rows that are duplicates, and rows over a budget; a sample may be both.
    """
    counts = np.bincount(rows.source_of, minlength=len(rows.sources)).tolist()
    total = Counter[str](dict(zip(rows.sources, counts, strict=True)))
    # Keys by source and problem: a source without a usable sample is listed, too.
    wrong: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for failure in rows.failures:
        wrong[failure.source][failure.kind].append(failure.key)
    for kind, rows_of_kind in (("duplicate", repeated), ("over_budget", over)):
        for row in rows_of_kind.tolist():
            wrong[rows.sources[int(rows.source_of[row])]][kind].append(rows.key(row))
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
            "resources": _source_costs(rows, number_of.get(name, -1)),
            **{kind: len(wrong[name][kind]) for kind in KINDS},
            "keys": {kind: wrong[name][kind][:NAMED] for kind in KINDS if wrong[name][kind]},
        }
        for name in sorted({*total, *wrong}, key=lambda name: (-total[name], name))
    ]


def _source_costs(rows: Rows, number: int) -> Json:
    """Return of every resource a source's mean, and its share of all that samples cost."""
    chosen, costs = rows.source_of == number, dict[str, Any]()
    for name in rows.resources if chosen.any() else ():
        column = rows.column(name)
        values, whole = column[chosen], int(column.sum())
        share = int(values.sum()) / whole if whole else 0.0
        costs[name] = {"mean": float(values.mean()), "share": share}
    return costs


def reasons(rows: Rows) -> list[Json]:
    """Return the reasons why samples cannot be used, the most frequent first.

    Reasons that differ only in numbers and quoted names count as one.
    """
    alike: dict[tuple[str, str], list[Failure]] = defaultdict(list)
    for failure in rows.failures:
        alike[failure.kind, re.sub(r"[0-9]+|'[^']*'", "N", failure.reason)].append(failure)
    most = sorted(alike.values(), key=lambda failures: (-len(failures), failures[0].key))
    return [
        {
            "count": len(failures),
            "kind": failures[0].kind,
            "reason": failures[0].reason,
            "keys": [failure.key for failure in failures[:NAMED]],
        }
        for failures in most[:NAMED]
    ]


def _quantiles(values: Int64) -> Json:
    """Return p50, p90, p99, p999 (nearest rank), max, mean and sum."""
    values = np.sort(values)
    ranks = {label: max(0, math.ceil(q * len(values)) - 1) for label, q in QUANTILES.items()}
    return {
        **{label: int(values[rank]) for label, rank in ranks.items()},
        "max": int(values[-1]),
        "mean": float(values.mean()),
        "sum": int(values.sum()),
    }


def heaviest(rows: Rows, work: Int64) -> list[Json]:
    """Return the samples of most work, heaviest first; work (n,) is of each sample."""
    top = np.argsort(-work, kind="stable")[:NAMED].tolist()
    mean = max(1.0, float(work.mean()))
    return [
        {
            "key": rows.key(row),
            "source": rows.sources[int(rows.source_of[row])],
            **dict(zip(rows.resources, rows.costs[row].tolist(), strict=True)),
            "times_mean": float(work[row]) / mean,
        }
        for row in top
    ]
