"""What a report says in words: its first line, the plans as rows, and the cards of its page.

The first line says what balancing gains, and what makes that figure doubtful. Every card names the
decision that it serves, and whether its figures are measured, probed or modelled.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from ...workers.sources.visible_text import visible
from ..console.page import Card, Part, Paste, percent, render_report, whole
from .counts import KINDS

Json = dict[str, Any]
# Sources that the page lists; report.json has the others.
MOST_SOURCES = 14
KEY_LENGTH = 34


def headline(report: Json) -> str:
    """Return the first line: what balancing gains, and what makes that figure doubtful."""
    return ". ".join([_gain(report), *doubts(report)])


def doubts(report: Json) -> list[str]:
    """Return a sentence for each reason to doubt the gain, with the option that mends it."""
    if not report["costs_known"]:
        return []  # the first sentence has said it
    reasons = []
    if report["bytes_as_tokens"]:
        reasons.append("A byte counts as a token here: give --transform MODULE:NAME for your own")
    if report["over_budget"]:
        share = percent(report["over_budget"] / report["usable"], 2)
        reasons.append(
            f"{share} of the samples exceed a budget alone and get microbatches of their own"
        )
    if report["unreadable"]:
        count, analyzed = report["unreadable"], report["analyzed"]
        reasons.append(f"{count:,} of {analyzed:,} samples and shards cannot be read")
    return reasons


def _gain(report: Json) -> str:
    if not report["costs_known"]:
        return (
            "No sample's cost is known, each counts as 1, and nothing can be said: name a "
            "function from a sample to its cost with --cost MODULE:NAME"
        )
    if report["leave_off"]:
        return "Balancing would gain less than 3 %: leave it off"
    waited, gain = (percent(v, 0) for v in (report["forecast"]["waited"], report["gain"]))
    return (
        f"Of your step, {waited} is waiting for the slowest rank; with the settings below it is "
        f"{gain} shorter (model, not measurement)"
    )


def plan_rows(report: Json) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the table of plans: the names of its columns, and its rows."""
    heads: tuple[str, ...]
    heads, forecast = ("plan", "step", "ranks wait", "padding"), report["forecast"]
    if forecast is None:
        return heads, []
    heads = (*heads, *(f"most {name}" for name in forecast["largest"]))
    now = [forecast["waited"], forecast["padding_random"]], forecast["largest_random"]
    then = [forecast["waiting"], forecast["padding"]], forecast["largest"]
    rows = [
        (name, percent(time, 0), *map(percent, shares), *map(whole, largest.values()))
        for name, time, (shares, largest) in (
            ("your loop now, in random order", 1, now),
            ("the settings to paste", forecast["time"], then),
        )
    ]
    empty = ("",) * (len(heads) - 2)
    for code, time in report["other_plans"].items():
        name = code if code.startswith("cp.") else f"the same with {code}"
        rows.append((name, percent(time, 0), *empty))
    return heads, rows


def render_page(report: Json) -> str:
    """Return the page as HTML; `report` is what report.json holds."""
    loop, planned = report["settings"], report["planned"]
    drawn = "" if report["analyzed"] == report["samples"] else (
        f" {report['analyzed']:,} of them, drawn at random, were measured."
    )  # fmt: skip
    part = "" if planned == report["usable"] else f" Planned on {planned:,}."
    title = "Settings if you balance anyway" if report["leave_off"] else "Settings to paste"
    page = render_report(
        _gain(report),
        f"{', '.join(report['inputs'])}: {report['samples']:,} samples. A step has "
        f"{loop['samples_per_step']} samples on {loop['ranks']} data-parallel ranks, in "
        f"{loop['layout']} microbatches of {loop['batch_size']} as your loop makes them now."
        f"{drawn}{part}",
        _step_bars(report),
        Paste(
            title,
            report["recommended"]["settings"],
            "Every step has the samples of the plain shuffle; only their ranks and microbatches "
            "change. Budgets are what a microbatch may hold.",
        ),
        _cards(report),
        "measured: counted on these files. probed: costs found from headers and text. modelled: "
        "computed from costs, of ranks that wait for each other after the encoder and after the "
        f"language model of every microbatch. {report['seconds']:.1f} s. "
        "Made by counterpoise analyze.",
        "".join(f"{sentence}. " for sentence in doubts(report)).strip(),
    )
    return visible(page)


def _step_bars(report: Json) -> list[tuple[str, list[Part]]]:
    """Return the parts of the step now and with the plan, in units of the step now."""
    forecast = report["forecast"]
    if forecast is None:
        return []
    bars = (
        ("Your step now", 1.0, forecast["waited"], forecast["padding_random"]),
        ("With these settings", forecast["time"], forecast["waiting"], forecast["padding"]),
    )
    return [(name, _parts(*figures)) for name, *figures in bars]


def _parts(time: float, waiting: float, padding: float) -> list[Part]:
    works = time * (1 - waiting)
    parts = (
        Part("work", "--work", works * (1 - padding)),
        Part("padding", "--padding", works * padding),
        Part("waiting", "--waiting", time * waiting),
    )
    return [part for part in parts if part.value > 0.001 or part.name == "work"]


def _cards(report: Json) -> Iterator[Card]:
    heads, rows = plan_rows(report)
    yield Card(
        "plans", "Plans", "modelled",
        "Decides whether to balance, and how. Steps are shares of your step now.",
        heads, rows,
        (
            'waits="step" is for ranks that meet once a step (DDP with no_sync), and compares '
            "with random order there.",
        ),
    )  # fmt: skip
    quantiles = ("p50", "p90", "p99", "p999", "max", "mean", "sum")
    yield Card(
        "costs", "Costs of samples", "probed",
        "Decides where to cut: the few samples in the last percent decide what budgets must be.",
        ("cost", *(name.replace("999", "99.9") for name in quantiles)),
        [
            (name, *(whole(cost[quantile]) for quantile in quantiles))
            for name, cost in report["resources"].items()
        ],
    )  # fmt: skip
    yield from _data(report)
    names = [*report["resources"]]
    yield Card(
        "heaviest", "Heaviest samples", "probed",
        "Decides what to look at first: all ranks wait for these samples.",
        ("sample", *names, "times mean"),
        [
            (shorten(sample["key"]), *(whole(sample[name]) for name in names),
             f"{sample['times_mean']:.1f}")
            for sample in report["heaviest"]
        ],
    )  # fmt: skip


def _data(report: Json) -> Iterator[Card]:
    """Yield the cards of what can be used, and why others cannot."""
    sources: Sequence[Json] = report["sources"]
    names = [*report["resources"]]
    more = len(sources) - MOST_SOURCES
    yield Card(
        "data", "Data quality", "measured",
        "Decides what to repair or leave out before training. Without --decode only headers are "
        "read.",
        ("source", "samples", "share", "fine", *(kind.replace("_", " ") for kind in KINDS),
         *(f"mean {name}" for name in names)),
        [
            (source["source"], whole(source["samples"]), percent(source["share"]),
             whole(source["fine"]), *(whole(source[kind]) for kind in KINDS),
             *(_format_mean(source["resources"].get(name)) for name in names))
            for source in sources[:MOST_SOURCES]
        ],
        (f"{more} more sources are listed in report.json.",) if more > 0 else (),
    )  # fmt: skip
    if report["reasons"]:
        yield Card(
            "reasons", "Why samples cannot be used", "measured",
            "The reason is that of the first sample of its kind.",
            ("count", "kind", "reason", "keys"),
            [
                (whole(reason["count"]), reason["kind"], reason["reason"],
                 ", ".join(map(shorten, reason["keys"][:3])))
                for reason in report["reasons"]
            ],
            text_columns=(1, 2, 3),
        )  # fmt: skip


def _format_mean(cost: Json | None) -> str:
    """Return a source's mean, and its share of what all samples cost."""
    return "" if cost is None else f"{whole(cost['mean'])} ({percent(cost['share'])})"


def shorten(key: str) -> str:
    """Return a sample's key; of a long one, the end.

    >>> shorten("part-00012/" + "0" * 30)
    '…12/000000000000000000000000000000'
    """
    return key if len(key) <= KEY_LENGTH else "…" + key[1 - KEY_LENGTH :]
