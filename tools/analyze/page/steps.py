"""Sections of the page about steps: waiting, padding, spread, shuffle, hosts, pipelines, errors."""

import html
from typing import Any

from ..model.strategies import STRATEGIES
from .charts import Line, bars, lines, meter, rounded
from .parts import COLOURS, card, dot, facts, note, percent, size, table, whole

Json = dict[str, Any]
SHOWN = (
    ("random", "exact"),
    ("length", "exact"),
    ("isf", "epoch"),
    ("balanced", "exact"),
    ("balanced", "window"),
)


def section_waiting(report: Json) -> str:
    """Waiting by strategy, and the imbalance of each resource."""
    found = report["strategies"]
    rows = [(n, COLOURS[n], found[n]["waiting"], found[n]["interval"]) for n in STRATEGIES]
    names = report["budgets"]["resources"]
    heads = ["", "efficiency", *(f"DistRatio, {n}" for n in names), "time a sample"]
    cells = [
        [
            dot(name),
            percent(1 - found[name]["waiting"]),
            *(percent(found[name]["dist_ratio"][n]) for n in names),
            whole(found[name]["time_per_sample"]),
        ]
        for name in STRATEGIES
    ]
    return card(
        "waiting",
        "Waiting, by way of making microbatches",
        "Decides whether to balance, and how: random is what a plain loop does, length groups "
        "samples of like size, isf is OmniBal's, balanced is ours.",
        "modelled",
        f'<div class="pair"><div>{bars(rows)}</div><div>{table(heads, cells)}'
        f"{note('Efficiency is 1 - waiting. Time is in tokens of the language model, per rank.')}"
        "</div></div>",
    )


def section_grid(report: Json) -> str:
    """Small multiples: efficiency and DistRatio against accumulate, a column for each ranks."""
    cells, names = report["grid"]["cells"], report["budgets"]["resources"]
    ranks = [n for n in sorted({c["ranks"] for c in cells}) if _columns(cells, n) > 1]
    ticks = sorted({cell["accumulate"] for cell in cells})
    if not ranks:
        body = note("The data hold too few samples for two steps of the settings in the grid.")
        return card("grid", "More ranks, more accumulation", DECIDES_GRID, "modelled", body)
    rows = []
    for name in ("", *names):
        title = f"DistRatio of {name}" if name else "efficiency"
        top = rounded(max(0.1, *(_value(cell, name) for cell in cells))) if name else 1.0
        plots = []
        for count in ranks:
            drawn = [_line(cells, count, shown, name) for shown in SHOWN]
            used = [line for line in drawn if line.points]
            words = f"{title}, {count} ranks"
            plots.append(
                lines(used, words, ticks, top, "accumulate", 385 if len(ranks) > 2 else 540)
            )
        rows.append(f'<div class="plots" style="--columns:{len(ranks)}">{"".join(plots)}</div>')
    legend = "".join(
        f"<li>{dot(name)}{'&nbsp;window <small>(dashed)</small>' if mode == 'window' else ''}</li>"
        for name, mode in SHOWN
    )
    words = (
        f"On every k-th of the planned part, {report['grid']['samples']:,} samples; bands are 95 % "
        "intervals over steps. A step has ranks x accumulate x batch size samples; isf is planned "
        "over the epoch."
    )
    return card(
        "grid",
        "More ranks, more accumulation",
        DECIDES_GRID,
        "modelled",
        f'<ul class="legend">{legend}</ul>{"".join(rows)}{note(words)}',
    )


def _columns(cells: list[Json], ranks: int) -> int:
    return len({cell["accumulate"] for cell in cells if cell["ranks"] == ranks})


DECIDES_GRID = (
    "Decides the size of a step and its mode: waiting grows with ranks, and falls with what a "
    "plan has to choose from."
)


def _line(cells: list[Json], ranks: int, shown: tuple[str, str], resource: str) -> Line:
    name, mode = shown
    mine = [c for c in cells if (c["ranks"], c["strategy"], c["mode"]) == (ranks, name, mode)]
    mine.sort(key=lambda cell: int(cell["accumulate"]))
    points = [(cell["accumulate"], _value(cell, resource)) for cell in mine]
    halves = [] if resource else [cell["interval"] for cell in mine]
    return Line(f"{name} {mode}", COLOURS[name], points, halves, shown == ("balanced", "window"))


def _value(cell: Json, resource: str) -> float:
    """The DistRatio of a resource; efficiency without one."""
    return float(cell["dist_ratio"][resource] if resource else 1 - cell["waiting"])


def section_padding(report: Json) -> str:
    """Padding against packing."""
    found = report["strategies"]
    rows = [(n, COLOURS[n], found[n]["padding"], 0.0) for n in STRATEGIES]
    saved = report["gain_padding"]
    words = (
        "Share of places that hold no token if each microbatch is padded to its longest sample. "
        f"Packing has none; next to your {report['plan']['layout']} loop it saves {percent(saved)} "
        "of the step."
    )
    return card(
        "padding",
        "Padding or packing",
        "Decides the layout: packed, unless the model's attention cannot keep samples apart.",
        "modelled",
        f'<div class="pair"><div>{bars(rows)}</div><div>{note(words)}</div></div>',
    )


def section_spread(report: Json) -> str:
    """Samples, tokens, labels per step."""
    rows = []
    for name in STRATEGIES:
        one = report["strategies"][name]["spread"]
        cells = [_spread(one[column]) for column in ("samples", "tokens", "label_tokens")]
        rows.append([dot(name), *cells, whole(report["strategies"][name]["steps"])])
    heads = ["", "samples a step", "tokens a step", "label tokens a step", "steps planned"]
    return card(
        "spread",
        "How even steps are",
        "Decides how to weigh the loss: where label tokens of a step vary, a mean of means is not "
        "the mean (scale_loss divides by the step's own count).",
        "probed modelled",
        table(heads, rows) + note("Mean, least to most, and the coefficient of variation."),
    )


def _spread(one: Json) -> str:
    if not one["max"]:
        return "<small>not in the data</small>"
    return (
        f"{whole(one['mean'])} <small>{whole(one['min'])} to {whole(one['max'])}, "
        f"cv {percent(one['cv'])}</small>"
    )


def section_shuffle(report: Json) -> str:
    """Shuffle quality and per-rank bias."""
    rows = []
    for name in STRATEGIES:
        one = report["strategies"][name]
        off = f"{one['chi2']:.2f} <small>± {1.96 * one['chi2_error']:.2f}</small>"
        rows.append([dot(name), off, f"{one['drift']:+.2f}", percent(one["rank_bias"])])
    heads = ["", "mixture, chi² / dof", "drift of length", "furthest rank from the mean"]
    words = (
        "chi²: sources and lengths of each step against the whole; 1 is a plain shuffle, more is "
        "clustered. Drift: correlation of a step's number with its mean length; 0 is no trend, and "
        "few steps scatter widely. The last column: how far one rank's mean load is off, at most."
    )
    return card(
        "shuffle",
        "How random the order still is",
        "Decides whether a plan may be used at all: balance must not bring back a curriculum or "
        "give one rank the light samples.",
        "modelled",
        table(heads, rows) + note(words),
    )


def section_images(report: Json) -> str:
    """Microbatches without images."""
    found = report["strategies"]
    rows = [(n, COLOURS[n], found[n]["no_images"], 0.0) for n in STRATEGIES]
    any_images = "tiles" in report["resources"]
    words = "An encoder under FSDP hangs where some ranks have images and others none."
    body = f'<div class="pair"><div>{bars(rows)}</div><div>{note(words)}</div></div>'
    if not any_images:
        body = note("These data have no cost called tiles, so nothing is known of images.")
    return card(
        "images",
        "Microbatches without images",
        "Decides whether the loader must add a dummy tile (dummy_tile=) for the "
        "encoder's collectives.",
        "modelled",
        body,
    )


def section_host(report: Json) -> str:
    """CPU time and bytes of a sample, hence workers and network."""
    host = report["host"]
    found = []
    if host["probe_ms"] is not None:
        found.append(("probing a sample", _ms(host["probe_ms"]), f"CPU, {host['probed']:,} timed"))
    if host["decode_ms"] is not None:
        timed = f"CPU, {host['decoded']:,} timed"
        found.append(("decoding a sample", _ms(host["decode_ms"]), timed))
    if host["bytes_per_sample"] is not None:
        found.append(("a sample decoded", size(host["bytes_per_sample"]), "on the wire"))
    if host.get("samples_per_s"):
        found.append(("a step asks for", f"{host['samples_per_s']:,.0f}", "samples/s (modelled)"))
    if host.get("workers") is not None:
        found.append(("hence", f"{max(1, -(-host['workers'] // 1)):,.0f}", "worker processes"))
    if host.get("bytes_per_s"):
        found.append(("and", f"{size(host['bytes_per_s'])}/s", "from workers to ranks"))
    words = ""
    if host["decode_ms"] is None:
        words = note("Nothing was decoded: analyze the shards with --decode to learn how many "
                     "workers it takes.")  # fmt: skip
    return card(
        "host",
        "Workers and network",
        "Decides num_workers, and whether decoding has to move to other machines.",
        "measured modelled",
        facts(found) + words,
    )


def _ms(value: float) -> str:
    return f"{value:.2f} ms"


def section_pipelines(report: Json) -> str:
    """Simulated step time and memory per pipeline schedule."""
    found = report["pipelines"]
    if not found:
        body = note("These data have no cost called tokens, or too few samples to simulate.")
        return card("pipelines", "Pipeline schedules", DECIDES_PIPELINE, "modelled", body)
    limit = report["budgets"]["machine"]["memory_bytes"]
    best = max(one["balanced"]["samples_per_s"] for one in found["schedules"])
    rows = []
    for one in found["schedules"]:
        cells = [html.escape(one["schedule"])]
        for name in ("random", "balanced"):
            rate = one[name]["samples_per_s"]
            cells += [f"{meter(rate / best, COLOURS[name], 70)} {rate:,.1f}"]
        cells += [f"{one[name]['milliseconds']:,.0f} ms" for name in ("random", "balanced")]
        cells.append(percent(one["balanced"]["bubble"]))
        peak = one["balanced"]["peak_bytes"]
        text = size(peak)
        cells.append(f'<span class="bad">{text}</span>' if peak > limit else text)
        rows.append(cells)
    heads = ["schedule", "random, samples/s", "balanced, samples/s", "random, step",
             "balanced, step", "idle", "peak memory"]  # fmt: skip
    share = found["shares"]
    words = (
        f"{report['budgets']['model']} on {report['budgets']['machine']['stages']} stages, "
        f"{found['microbatches']} microbatches of the plans; a step lasts as long as its slowest "
        f"rank's. Encoder {percent(share['encoder'])}, vocabulary {percent(share['vocabulary'])} "
        "of the work. Layers are split evenly by time for 3 tiles beside 4,096 tokens; idle counts "
        "what filling and unequal stages cost. Red: more than a device has."
    )
    body = table(heads, rows) + note(words)
    return card("pipelines", "Pipeline schedules", DECIDES_PIPELINE, "modelled", body)


DECIDES_PIPELINE = (
    "Decides the schedule: which one is fastest on these microbatches within memory, and whether "
    "the encoder or the vocabulary deserves stages of its own."
)


def section_sensitivity(report: Json) -> str:
    """What wrong costs do."""
    found = report["sensitivity"]
    ticks = [one["error"] for one in found]
    top = rounded(max(0.02, *(one["waiting"] for one in found)))
    line = Line("balanced", "--balanced", [(one["error"], one["waiting"]) for one in found])
    picture = lines([line], "Waiting", ticks, top, "costs known up to", 540,
                    tick=lambda value: f"± {100 * value:.0f} %")  # fmt: skip
    rows = [
        [
            f"± {100 * one['error']:.0f} %",
            percent(one["waiting"]),
            percent(one["over_budget"]),
            f"{one['largest_over_budget']:.2f}",
        ]
        for one in found
    ]
    heads = ["error", "waiting", "microbatches over budget", "fullest, x budget"]
    return card(
        "sensitivity",
        "If costs are wrong",
        "Decides whether estimated costs will do, and how much room to leave below the memory's "
        "limit: the plan sees costs with this error, the ranks the true ones.",
        "modelled",
        f'<div class="pair"><div>{picture}</div><div>{table(heads, rows)}</div></div>',
    )
