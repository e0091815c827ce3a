"""Draws each chart twice, for wide and for narrow screens; the style sheet shows one of them.

A picture that is only scaled down has letters of 5 pixels on a telephone.
"""

from collections.abc import Callable

from markupsafe import Markup

WIDE, NARROW = 560, 320


def both_widths(draw: Callable[[int], Markup], wide: int = WIDE) -> Markup:
    """Return what draw(width in pixels) makes for both widths.

    >>> print(both_widths(lambda width: Markup(width)))
    <div class="wide">560</div><div class="narrow">320</div>
    """
    pair = ((name, draw(width)) for name, width in (("wide", wide), ("narrow", NARROW)))
    return Markup("").join(Markup('<div class="{}">{}</div>').format(*each) for each in pair)
