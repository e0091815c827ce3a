"""The report as one self-contained HTML page: nothing is loaded from elsewhere, no script needed.

The first line says what there is to gain, the top what to paste; every section below names the
decision that it serves and says whether its figures are measured, probed or modelled.
"""

import html
from importlib import resources
from typing import Any

from .charts import Part, stacked
from .costs import section_budgets, section_costs, section_data, section_heaviest
from .parts import percent
from .steps import (
    section_grid,
    section_host,
    section_images,
    section_padding,
    section_pipelines,
    section_sensitivity,
    section_shuffle,
    section_spread,
    section_waiting,
)

Json = dict[str, Any]
SECTIONS = (
    section_waiting,
    section_grid,
    section_padding,
    section_budgets,
    section_costs,
    section_data,
    section_heaviest,
    section_spread,
    section_shuffle,
    section_images,
    section_host,
    section_pipelines,
    section_sensitivity,
)
COPY = """
const button = document.getElementById("copy");
button.onclick = () => {
  const text = document.getElementById("settings").textContent;
  navigator.clipboard.writeText(text).then(() => { button.textContent = "Copied"; });
};
"""


def headline(report: Json) -> str:
    """Return the first line: what is lost, and what the settings recover."""
    if report["leave_off"]:
        return "Balancing would gain less than 3 %: leave it off"
    return (
        f"Of your step, {_whole(report['waiting']['random'])} is waiting for the slowest rank; the "
        f"settings below recover {_whole(report['gain'])} (model, not measurement)"
    )


def render_page(report: Json) -> str:
    """Return the page."""
    style = resources.files(__package__).joinpath("analyze.css").read_text("utf-8")
    body = "\n".join(section(report) for section in SECTIONS)
    title = html.escape(headline(report))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="counterpoise">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<h1>{_marked(report)}</h1>
<p class="subtitle">{html.escape(_subtitle(report))}</p>
{_top(report)}
<main>
{body}
</main>
<footer>{html.escape(_how(report))}</footer>
<script>{COPY}</script>
</body>
</html>
"""


def _marked(report: Json) -> str:
    """The first line with its two figures in colour."""
    if report["leave_off"]:
        return headline(report)
    return (
        f"Of your step, <em>{_whole(report['waiting']['random'])}</em> is waiting for the slowest "
        f"rank; the settings below recover <strong>{_whole(report['gain'])}</strong> "
        "<small>(model, not measurement)</small>"
    )


def _subtitle(report: Json) -> str:
    plan, part = report["plan"], report["part"]
    text = (
        f"{', '.join(report['inputs'])}: {report['samples']:,} samples. A step of "
        f"{plan['samples_per_step']} samples on {plan['ranks']} data-parallel ranks, "
        f"{plan['batch_size']} in a microbatch as your loop makes them, {plan['layout']}."
    )
    if report["analyzed"] < report["samples"]:
        text += f" {report['analyzed']:,} of them, drawn at random, were looked at."
    if part["samples"] < part["of"]:
        text += f" Planned on a random part of {part['samples']:,}."
    return text


def _top(report: Json) -> str:
    now, gain, padding = report["waiting"]["random"], report["gain"], report["gain_padding"]
    work = 1 - now - max(0.0, padding)
    before = [Part("work", "--work", work)]
    if padding > 0.001:
        before.append(Part("padding", "--padding", padding))
    before.append(Part("waiting", "--waiting", now))
    after = [
        Part("work", "--work", 1 - now - padding),
        Part("waiting", "--waiting", max(0.0, now - gain)),
    ]
    used = "".join(
        f'<li><i class="dot" style="background:var({part.colour})"></i>{part.name}</li>'
        for part in before
    )
    picture = stacked([("Your step now", before), ("With these settings", after)])
    total = percent(report["gain_total"])
    words = f"The same samples take {total} less of the step's time."
    if padding > 0.001:
        words += f" Of that, packing instead of padding saves {percent(padding)}."
    return f"""<div class="top">
<section class="card" id="step"><header><h2>Where the step's time goes</h2>
<span class="tag modelled">modelled</span></header>
<ul class="legend" style="margin-top:10px">{used}</ul>
{picture}<p class="note">{words}</p></section>
<section class="card" id="paste"><header><h2>{_advice(report)}</h2>
<button type="button" id="copy">Copy</button></header>
<p class="decides">{html.escape(_why(report))}</p>
<pre id="settings">{html.escape(report["recommended"]["settings"])}</pre></section>
</div>"""


def _advice(report: Json) -> str:
    return "If you balance all the same" if report["leave_off"] else "Settings to paste"


def _why(report: Json) -> str:
    mode = report["recommended"]["mode"]
    if mode == "exact":
        return (
            "mode exact: step by step the samples of the plain shuffle; only who gets what changes."
        )
    if mode == "window":
        return "mode window: a step draws from a few steps' samples, which saves over 2 % here."
    return f"mode {mode}: as asked for."


def _how(report: Json) -> str:
    plan = report["plan"]
    return (
        "measured: counted or timed on these files. probed: costs found from headers and text. "
        f"modelled: computed from costs, a tile as {plan['tile_tokens']} tokens of the language "
        "model, ranks waiting after the encoder and after the language model of every micro-step. "
        f"± is the 95 % interval over steps. Seed {plan['seed']}; {report['seconds']:.1f} s. "
        "Made by counterpoise analyze."
    )


def _whole(value: float) -> str:
    return f"{100 * value:.0f} %"
