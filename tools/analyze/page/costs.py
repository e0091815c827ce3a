"""Sections of the page about the data: costs, budgets, counts by source, the heaviest."""

import html
from typing import Any

from .charts import feasible, heat, meter
from .parts import card, dot, key, millions, note, percent, size, table, whole

Json = dict[str, Any]


def section_budgets(report: Json) -> str:
    """The frontier of feasible budgets, the paper's rule and the search."""
    found = report["budgets"]
    names = found["resources"]
    rows = []
    for label, name in (("OmniBal's rule", "omnibal"), ("searched", "searched")):
        one = found[name]
        rows.append(_candidate(label, one, names, dict(zip(names, one["budgets"], strict=True))))
    chosen = report["recommended"]["budgets"]
    if chosen != dict(zip(names, found["searched"]["budgets"], strict=True)):
        rows.append(["as asked for", *(whole(chosen[n]) for n in names), "", "", "", ""])
    machine = found["machine"]
    heads = ["", *names, "waiting", "time", "over budget", "memory"]
    picture = _frontier(found, names) if found["frontier"] else ""
    fits = (
        f"Red: more than a device has. Memory of a {found['model']} model on "
        f"{machine['stages']} stages x "
        f"{machine['tensor_parallel']} tensor-parallel ranks of "
        f"{machine['memory_bytes'] / 1e9:.0f} GB under 1F1B, without recomputation. Time counts "
        "waiting and the pipeline's filling."
    )
    need = found["heaviest_sample_bytes"]
    if need is not None and need > machine["memory_bytes"]:
        fits = (
            f"The heaviest sample alone needs {size(need)}: cut it (max_tokens, max_tiles), "
            "recompute activations, or use more devices. "
        ) + fits
    if not found["searched"]["fits"]:
        fits = (
            "No budgets tried fit in memory: cut long samples (max_tokens), or use more devices. "
            + fits
        )
    return card(
        "budgets",
        "Budgets and memory",
        "Decides how much a microbatch may hold: as much as fits, but not so much that a pipeline "
        "gets too few of them.",
        "modelled",
        f'<div class="pair"><div>{picture}</div><div>{table(heads, rows)}{note(fits)}</div></div>'
        if picture
        else table(heads, rows) + note(fits),
    )


def _candidate(label: str, one: Json, names: list[str], budgets: dict[str, int]) -> list[str]:
    peak = size(one["peak_bytes"]) if one["peak_bytes"] is not None else "-"
    if not one["fits"]:
        peak = f'<span class="bad">{peak}</span>'
    return [
        label,
        *(whole(budgets[name]) for name in names),
        percent(one["waiting"]),
        whole(one["time"]),
        percent(one["over"], 2),
        peak,
    ]


def _frontier(found: Json, names: list[str]) -> str:
    x, y = names.index("tokens"), names.index("tiles")
    marks = [
        (
            "searched",
            "--balanced",
            found["searched"]["budgets"][x],
            found["searched"]["budgets"][y],
        ),
        ("OmniBal's", "--random", found["omnibal"]["budgets"][x], found["omnibal"]["budgets"][y]),
    ]
    if marks[0][2:] == marks[1][2:]:
        marks = [("both", "--balanced", *marks[0][2:])]
    tried = [
        (
            one["budgets"][x],
            one["budgets"][y],
            f"{one['budgets'][y]} tiles, {one['budgets'][x]:,} tokens: waiting "
            f"{percent(one['waiting'])}, time {whole(one['time'])}",
        )
        for one in found["tried"]
    ]
    return feasible([(a, b) for a, b in found["frontier"]], marks, tried)


def section_costs(report: Json) -> str:
    """Quantiles and the joint heat map."""
    heads = ["cost", "p50", "p90", "p99", "p99.9", "max", "mean", "sum"]
    rows = []
    for name, one in report["resources"].items():
        cells = [whole(one["max"]), f"{one['mean']:,.1f}", millions(one["sum"])]
        rows.append([html.escape(name), *(_quantile(one, p) for p in PS), *cells])
    tables = table(heads, rows)
    if any("intervals" in one for one in report["resources"].values()):
        tables += note("Small figures: 95 % interval of the quantile, since this is a sample.")
    joint, budgets = report["joint"], report["recommended"]["budgets"]
    body = tables
    if joint:
        limit = (budgets["tiles"], budgets["tokens"]) if "tiles" in budgets else None
        picture = heat(joint["tokens"], joint["tiles"], joint["counts"], limit)
        words = "Colours go by the logarithm of the number of samples; the last cells are open."
        body = f'<div class="pair"><div>{picture}{note(words)}</div><div>{tables}</div></div>'
    return card(
        "costs",
        "What samples cost",
        "Decides where to cut: the few samples of the last percent set the budget for all others.",
        "probed",
        body,
    )


PS = ("p50", "p90", "p99", "p999")


def _quantile(one: Json, name: str) -> str:
    text = whole(one[name])
    if "intervals" in one:
        low, high = one["intervals"][name]
        text += f"<br><small>{whole(low)} to {whole(high)}</small>"
    return text


def section_data(report: Json) -> str:
    """Counts by source, with the keys of those that are not fine."""
    heads = ["source", "samples", "fine", "unreadable", "truncated", "shards lost", "duplicate",
             "over budget", "keys"]  # fmt: skip
    rows, most = [], 14
    for one in report["sources"][:most]:
        keys = [
            f"<b>{kind.replace('_', ' ')}</b> " + " ".join(key(name) for name in names[:3])
            for kind, names in one["keys"].items()
        ]
        bad = [
            _count(one[k]) for k in ("unreadable", "truncated", "shard", "duplicate", "over_budget")
        ]
        rows.append([html.escape(one["source"]), whole(one["samples"]), whole(one["fine"]), *bad,
                     "<br>".join(keys)])  # fmt: skip
    body = table(heads, rows, texts=(8,))
    if len(report["sources"]) > most:
        body += note(f"{len(report['sources']) - most} more sources stand in report.json.")
    if report["analyzed"] < report["samples"]:
        low, high = report["unreadable_interval"]
        body += note(
            f"Counts are of the {report['analyzed']:,} samples drawn; of all, {percent(low, 2)} to "
            f"{percent(high, 2)} are unreadable (95 % interval)."
        )
    if report["failures"]:
        seen = [
            [
                whole(one["count"]),
                one["kind"],
                html.escape(one["reason"]),
                " ".join(key(name) for name in one["keys"][:3]),
            ]
            for one in report["reasons"]
        ]
        heads = ["how many", "", "why, of the first", "keys"]
        text = table(heads, seen, texts=(1, 2, 3)).replace('class="text"', 'class="text cut"')
        body += f'<h3 style="margin-top:18px">Why they cannot be used</h3>{text}'
    read = "decoded" if report["host"]["decoded"] else "headers read"
    text = "Decides what to repair or leave out before training."
    if read != "decoded" and report["host"]["bytes_per_sample"] is not None:
        text += " Only headers were read; --decode finds images that are damaged further in."
    return card("data", "What is there", text, "measured", body, long=True)


def _count(value: int) -> str:
    return f'<span class="bad">{value:,}</span>' if value else "<small>0</small>"


def section_heaviest(report: Json) -> str:
    """The 20 heaviest samples and microbatches."""
    found = report["heaviest"]
    names = report["budgets"]["resources"]
    most = max([1.0, *(one["times_mean"] for one in found["samples"])])
    samples = [
        [
            key(one["key"]),
            *(whole(one[name]) for name in names),
            f"{meter(one['times_mean'] / most, '--work', 60)} {one['times_mean']:.1f}",
        ]
        for one in found["samples"]
    ]
    wide = max([1.0, *(one["times_mean"] for one in found["microbatches"]["random"])])
    pairs = zip(found["microbatches"]["random"], found["microbatches"]["balanced"], strict=False)
    both = [
        [cell for name, one in (("random", now), ("balanced", then))
         for cell in _microbatch(name, one, wide)]
        for now, then in pairs
    ]  # fmt: skip
    left = table(["sample", *names, "x mean"], samples)
    right = table(["random, x mean", "with", "balanced, x mean", "with"], both, texts=(0, 1, 2, 3))
    legend = f'<ul class="legend"><li>{dot("random")}</li><li>{dot("balanced")}</li></ul>'
    return card(
        "heaviest",
        "The heaviest",
        "Decides what to look at first: these samples, and the microbatches that they end up in, "
        "are what the others wait for.",
        "probed modelled",
        f'<div class="pair"><div><h3>20 samples</h3>{left}</div>'
        f"<div><h3>20 microbatches</h3>{legend}{right}</div></div>",
    )


def _microbatch(name: str, one: Json, wide: float) -> tuple[str, str]:
    """How heavy a microbatch is, and its first sample."""
    bar = meter(one["times_mean"] / wide, f"--{name}", 56)
    more = f" <small>+ {one['samples'] - 1}</small>" if one["samples"] > 1 else ""
    return f"{bar} {one['times_mean']:.2f}", key(one["keys"][0]) + more if one["keys"] else ""
