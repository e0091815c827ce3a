"""A report as one self-contained HTML page: its first line, bars, lines to paste, cards, a picture.

All reports and timelines have this page, so nothing of a report is markup: autoescape is on, and
what a user's data are called may stand anywhere. Nothing is loaded from elsewhere, and the page
reads without its script. Bars are drawn twice, for wide and for narrow screens, and the style sheet
shows one of them: a picture that is only scaled down has letters of 5 pixels on a telephone.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..simulation.timeline import Timeline
from .elements import element, inline, text, tooltip
from .palette import theme
from .picture import chunks
from .summary import BYTES, CAUSES, MemoryUnit, causes, format_memory, format_time, peak
from .svg import STYLE, draw_timelines

# Of bars beside lines to paste, alone, and on a telephone; of the picture.
WIDE, ALONE, NARROW, WHOLE = 560, 720, 320, 1154
PITCH = 66
# A part narrower than this has no room for its figure.
ROOM_FOR_TEXT = 54
LIGHT = ("--padding", "--warm-up", "--cool-down")


@dataclass(frozen=True, slots=True)
class Card:
    """A section of a page: a table, and notes below it.

    tag: whether its figures are "measured", "probed" or "modelled". about: the decision that it
    serves. text_columns: those of words, which stand at their left.
    """

    name: str
    title: str
    tag: str = ""
    about: str = ""
    heads: tuple[str, ...] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    text_columns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Paste:
    """Lines to paste, and what stands above them."""

    title: str
    text: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a stacked bar: its name, which may be shown in percent, its CSS colour, length."""

    name: str
    colour: str
    value: float


Bars = Sequence[tuple[str, Sequence[Part]]]


def render_report(
    title: str, subtitle: str, bars: Bars, paste: Paste | None, cards: Iterable[Card], footer: str,
    doubts: str = "", *, bars_title: str = "Where a step's time goes", picture: str = "",
) -> str:  # fmt: skip
    """Return the page as HTML. bars: by their names, on one scale; doubts: in red; picture: SVG."""
    # Only those who write a page pay for importing jinja2.
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader(__package__), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    legend = dict.fromkeys((part.name, part.colour) for _, parts in bars for part in parts)
    page = environment.get_template("report.html.j2").render(
        title=title, subtitle=subtitle, legend=[*legend], bars_title=bars_title, paste=paste,
        cards=[*cards], footer=footer, doubts=doubts, picture=Markup(picture),
        style=Markup(theme(selector=":root") + STYLE * bool(picture)),
        charts=[(name, Markup(stacked(bars, width))) for name, width in _widths(paste) if bars],
    )  # fmt: skip
    return unbroken(page)


def render_html(
    timelines: Sequence[Timeline],
    *,
    title: str = "Pipeline schedules",
    subtitle: str = "",
    unit: MemoryUnit = BYTES,
) -> str:
    """Return the page that compares timelines. Raises ValueError without any.

    `unit`: the unit of the timelines' memory.
    """
    parts, height = draw_timelines(timelines, unit=unit, width=WHOLE)
    names = ", ".join(timeline.name for timeline in timelines)
    has_memory = any(peak(timeline).bytes for timeline in timelines)
    heads = ("", "ranks", "makespan", "against first", "bubble", *["peak memory"] * has_memory)
    rows = []
    for one in timelines:
        ranks = f"{len(one.ranks)}" + f" x {chunks(one)} chunks" * (chunks(one) > 1)
        against = f"{timelines[0].makespan_ns / max(1, one.makespan_ns):.2f} x"
        row = (one.name, ranks, format_time(one.makespan_ns), against, percent(one.bubble_ratio))
        rows.append((*row, *[format_memory(peak(one).bytes, unit)] * has_memory))
    whole = max(timeline.makespan_ns for timeline in timelines) or 1
    bars = [
        (one.name, [
            Part(cause, "--" + cause, share * one.makespan_ns / whole)
            for cause, share in zip(CAUSES, causes(one), strict=True) if share
        ])
        for one in timelines
    ]  # fmt: skip
    return render_report(
        title, subtitle, bars, None, [Card("figures", "Key figures", heads=heads, rows=rows)],
        "Point at a pass for its name and times. All panels have one time axis and one memory "
        "axis. To zoom, write a trace (--out FILE.json) and open it in ui.perfetto.dev.",
        bars_title="Where the ranks' time goes, of the longest",
        picture=inline(WHOLE, height, parts, label=f"timelines of {names}", look="timeline"),
    )  # fmt: skip


def percent(value: float, digits: int = 1) -> str:
    """Return a share in percent.

    >>> percent(0.1234)
    '12.3 %'
    """
    return f"{100 * value:.{digits}f} %"


def unbroken(page: str) -> str:
    """Return HTML whose lines never end between a number and its per cent sign.

    >>> unbroken("<p>of 5 %</p><pre>5 %</pre>") == "<p>of 5\N{NO-BREAK SPACE}%</p><pre>5 %</pre>"
    True
    """
    # what is copied or run stays as it is
    found = re.compile(r"<(pre|script|style)\b.*?</\1>|(?<=\d) %", re.DOTALL)
    return found.sub(lambda m: m[0] if m[1] else "\N{NO-BREAK SPACE}%", page)


def whole(value: float) -> str:
    """Return a number rounded to an integer, with thousands separated.

    >>> whole(12345.6)
    '12,346'
    """
    return f"{value:,.0f}"


def _widths(paste: Paste | None) -> tuple[tuple[str, int], ...]:
    return ("wide", WIDE if paste else ALONE), ("narrow", NARROW)


def stacked(bars: Bars, width: int) -> str:
    """Return stacked bars on one scale, each below its label."""
    longest = max(sum(part.value for part in parts) for _, parts in bars) or 1.0
    pieces = list[str]()
    for row, (label, parts) in enumerate(bars):
        pieces.append(text(0, PITCH * row + 14, label, "strong big"))
        pieces += _parts(parts, PITCH * row + 23, width / longest)
    words = (
        f"{label}: " + ", ".join(f"{part.name} {percent(part.value)}" for part in parts)
        for label, parts in bars
    )
    return inline(width, PITCH * len(bars) - 8, pieces, label="; ".join(words))


def _parts(parts: Sequence[Part], top: float, scale: float) -> Iterator[str]:
    """Yield the pieces of one stacked bar, each with its figure if it fits."""
    at = 0.0
    for part in parts:
        length, words = part.value * scale, f"{part.name}: {percent(part.value)}"
        wide, fill = max(0.0, length - 1.5), f"var({part.colour})"
        yield element("rect", tooltip(words), x=at, y=top, width=wide, height=28, rx=3, fill=fill)
        if length > ROOM_FOR_TEXT:
            # White text cannot be read on a light colour.
            look = "strong" if part.colour in LIGHT else "inside"
            yield text(at + 8, top + 19, percent(part.value), look)
        at += length
