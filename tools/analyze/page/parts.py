"""Pieces that the page's sections share: cards, tables, numbers as people read them."""

import html
from collections.abc import Sequence

from ..model.strategies import STRATEGIES

COLOURS = {name: f"--{name}" for name in STRATEGIES}
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def card(name: str, title: str, decides: str, source: str, body: str, long: bool = False) -> str:
    """Return a section; source: measured, probed or modelled, or several of them."""
    tags = " ".join(f'<span class="tag {one}">{one}</span>' for one in source.split())
    return f"""<section class="card{" long" if long else ""}" id="{name}">
<header><h2>{html.escape(title)}</h2><span>{tags}</span></header>
<p class="decides">{html.escape(decides)}</p>
{body}
</section>"""


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], texts: Sequence[int] = ()) -> str:
    """Return a table; cells are HTML already, texts: columns that stand left."""
    kind = [' class="text"' if k in texts else "" for k in range(len(heads))]
    top = "".join(f"<th{kind[k]}>{html.escape(head)}</th>" for k, head in enumerate(heads))
    body = "".join(
        "<tr>" + "".join(f"<td{kind[k]}>{cell}</td>" for k, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    inner = f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table>{inner}</table></div>'


def note(text: str) -> str:
    """Return a quiet remark."""
    return f'<p class="note">{html.escape(text)}</p>'


def facts(found: Sequence[tuple[str, str, str]]) -> str:
    """Return large figures: (what, figure, small words after it)."""
    cells = "".join(
        f"<div><dt>{html.escape(what)}</dt><dd>{html.escape(figure)} "
        f"<small>{html.escape(more)}</small></dd></div>"
        for what, figure, more in found
    )
    return f'<dl class="facts">{cells}</dl>'


def dot(name: str) -> str:
    """Return a strategy's name with its colour."""
    return f'<i class="dot" style="background:var({COLOURS[name]})"></i>{name}'


def key(text: str) -> str:
    """Return a key for a table cell; a long one keeps its end."""
    short = text if len(text) <= 34 else "…" + text[-33:]
    return f'<code title="{html.escape(text, quote=True)}">{html.escape(short)}</code>'


def percent(value: float, digits: int = 1) -> str:
    """Return a share in percent.

    >>> percent(0.1234)
    '12.3 %'
    """
    return f"{100 * value:.{digits}f} %"


def whole(value: float) -> str:
    """Return a number without fraction, with thousands apart."""
    return f"{value:,.0f}"


def millions(value: float) -> str:
    """Return a number, in millions where that is shorter.

    >>> millions(8_005), millions(3_265_146)
    ('8,005', '3.27 M')
    """
    return f"{value / 1e6:,.2f} M" if value >= 1e6 else whole(value)


def size(value: float) -> str:
    """Return bytes in a unit that keeps the number short.

    >>> size(3_600_000), size(12)
    ('3.6 MB', '12 B')
    """
    for unit, name in UNITS:
        if abs(value) >= unit:
            return (
                f"{value / unit:.1f} {name}" if value < 100 * unit else f"{value / unit:.0f} {name}"
            )
    return f"{value:.0f} B"
