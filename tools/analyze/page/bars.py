"""Formats numbers and keys for pages, and draws stacked bars.

Functions of one value are the templates' filters. Each chart is drawn twice, for wide and for
narrow screens, and the style sheet shows one of them: a picture that is only scaled down has
letters of 5 pixels on a telephone.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ....sched.render.elements import element, inline, text, tooltip

KEY_LENGTH = 34
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


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


def size(value: float) -> str:
    """Return bytes in the largest unit that fits, with one decimal below 100.

    >>> size(3_600_000), size(12)
    ('3.6 MB', '12 B')
    """
    for unit, name in UNITS:
        if abs(value) >= unit:
            digits = 1 if value < 100 * unit else 0
            return f"{value / unit:.{digits}f} {name}"
    return f"{value:.0f} B"


def shorten(key: str) -> str:
    """Return a sample's key; of a long one, the end.

    >>> shorten("part-00012/" + "0" * 30)
    '…12/000000000000000000000000000000'
    """
    return key if len(key) <= KEY_LENGTH else "…" + key[1 - KEY_LENGTH :]


WIDE, NARROW = 560, 320


def both_widths(draw: Callable[[int], Markup], wide: int = WIDE) -> Markup:
    """Return what draw(width in pixels) makes for both widths.

    >>> print(both_widths(lambda width: Markup(width)))
    <div class="wide">560</div><div class="narrow">320</div>
    """
    pair = ((name, draw(width)) for name, width in (("wide", wide), ("narrow", NARROW)))
    return Markup("").join(Markup('<div class="{}">{}</div>').format(*each) for each in pair)


STACKED_PITCH = 66
# A part narrower than this has no room for its figure.
ROOM_FOR_TEXT = 54


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a stacked bar: its name, its CSS colour, its length."""

    name: str
    colour: str
    value: float


def stacked(rows: Sequence[tuple[str, Sequence[Part]]], width: int = 560) -> Markup:
    """Return stacked bars on one scale, each below its label."""
    longest = max(sum(part.value for part in parts) for _, parts in rows) or 1.0
    pieces = []
    for row, (label, parts) in enumerate(rows):
        top = STACKED_PITCH * row
        pieces.append(text(0, top + 14, label, "strong big"))
        pieces += _parts(parts, top + 23, width / longest)
    words = (
        f"{label}: " + ", ".join(f"{part.name} {percent(part.value)}" for part in parts)
        for label, parts in rows
    )
    height = STACKED_PITCH * len(rows) - 8
    return Markup(inline(width, height, pieces, label="; ".join(words)))


def _parts(parts: Sequence[Part], top: float, scale: float) -> Iterator[str]:
    """Yield the pieces of one stacked bar, each with its figure if it fits."""
    at = 0.0
    for part in parts:
        size = part.value * scale
        words = tooltip(f"{part.name}: {percent(part.value)}")
        yield _bar(at, top, max(0.0, size - 1.5), 28, part.colour, words)
        if size > ROOM_FOR_TEXT:
            # Padding is drawn in a light colour, on which white text cannot be read.
            look = "strong" if part.colour == "--padding" else "inside"
            yield text(at + 8, top + 19, percent(part.value), look)
        at += size


def _bar(x: float, y: float, width: float, height: float, colour: str, words: str = "") -> str:
    fill = f"var({colour})"
    return element("rect", words, x=x, y=y, width=width, height=height, rx=3, fill=fill)


@cache
def page_environment(package: str) -> Environment:
    """Return the templates of a package; all pages have page.css.

    Autoescape is on, and a name that is not defined is an error.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader(__package__)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "whole": whole, "bytes": size}
    return environment
