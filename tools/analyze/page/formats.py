"""Formats numbers and keys for the page, names colours, and draws charts for two widths of screen.

Functions of one value are the templates' filters.
"""

from collections.abc import Callable

from markupsafe import Markup

from ..model.strategies import STRATEGIES

# The CSS variable of each strategy's colour.
COLOURS = {name: f"--{name}" for name in STRATEGIES}
KEY_LENGTH = 34
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def percent(value: float, digits: int = 1) -> str:
    """Return a share in percent.

    >>> percent(0.1234)
    '12.3 %'
    """
    return f"{100 * value:.{digits}f} %"


def whole(value: float) -> str:
    """Return a number rounded to an integer, with thousands separated.

    >>> whole(12345.6)
    '12,346'
    """
    return f"{value:,.0f}"


def millions(value: float) -> str:
    """Return a number, in millions where that is shorter.

    >>> millions(8_005), millions(3_265_146)
    ('8,005', '3.27 M')
    """
    return f"{value / 1e6:,.2f} M" if value >= 1e6 else whole(value)


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
