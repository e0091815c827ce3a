"""A report as one self-contained HTML page: its first line, bars, lines to paste, cards.

All reports have this page, so nothing of a report is markup: autoescape is on, and what a user's
data are called may stand anywhere. Nothing is loaded from elsewhere, and the page reads without its
script.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...sched.render.palette import make_theme_css


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
    """A piece of a stacked bar: its name, its CSS colour, and its length, shown in percent."""

    name: str
    colour: str
    value: float


Bars = Sequence[tuple[str, Sequence[Part]]]


def render_report(
    title: str, subtitle: str, bars: Bars, paste: Paste, cards: Iterable[Card], footer: str,
    doubts: str = "",
) -> str:  # fmt: skip
    """Return the page as HTML. bars: by their names, on one scale; doubts: in red."""
    # Only those who write a page pay for importing jinja2.
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader(__package__), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["percent"] = percent
    lengths = [sum(part.value for part in parts) for _, parts in bars]
    page = environment.get_template("report.html.j2").render(
        title=title, subtitle=subtitle, bars=bars, longest=max(lengths, default=1.0) or 1.0,
        legend=[*dict.fromkeys((part.name, part.colour) for _, parts in bars for part in parts)],
        paste=paste, cards=[*cards], footer=footer, doubts=doubts,
        style=Markup(make_theme_css(selector=":root")),
    )  # fmt: skip
    return join_lines(page)


def percent(value: float, digits: int = 1) -> str:
    """Return a share in percent.

    >>> percent(0.1234)
    '12.3 %'
    """
    return f"{100 * value:.{digits}f} %"


def join_lines(page: str) -> str:
    """Return HTML whose lines never end between a number and its per cent sign.

    >>> join_lines("<p>of 5 %</p><pre>5 %</pre>") == "<p>of 5\N{NO-BREAK SPACE}%</p><pre>5 %</pre>"
    True
    """
    # what is copied or run stays as it is
    breakable = re.compile(r"<(pre|script|style)\b.*?</\1>|(?<=\d) %", re.DOTALL)
    return breakable.sub(lambda m: m[0] if m[1] else "\N{NO-BREAK SPACE}%", page)


def whole(value: float) -> str:
    """Return a number rounded to an integer, with thousands separated.

    >>> whole(12345.6)
    '12,346'
    """
    return f"{value:,.0f}"
