"""A report as one self-contained HTML page: its first line, bars of a step, lines to paste, cards.

All reports have this page, so nothing of a report is markup: autoescape is on, and what a user's
data are called may stand anywhere. Nothing is loaded from elsewhere, and the page reads without its
script.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from ....workers.sources.visible_text import visible
from .bars import Part, both_widths, page_environment, stacked, unbroken


@dataclass(frozen=True, slots=True)
class Card:
    """A section of a page: a table, and notes below it.

    tag: whether its figures are "measured", "probed" or "modelled". about: the decision that it
    serves. text_columns: those of words, which stand at their left.
    """

    name: str
    title: str
    tag: str
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


def render_report(
    title: str, subtitle: str, bars: Sequence[tuple[str, Sequence[Part]]], paste: Paste,
    cards: Iterable[Card], footer: str, doubts: str = "",
) -> str:  # fmt: skip
    """Return the page as HTML. bars: of a step, by their names, on one scale; doubts: in red."""
    legend = dict.fromkeys((part.name, part.colour) for _, parts in bars for part in parts)
    page = page_environment(__package__).get_template("report.html.j2").render(
        title=title, subtitle=subtitle, legend=[*legend], paste=paste, cards=[*cards],
        footer=footer, doubts=doubts, chart=both_widths(partial(stacked, bars)) if bars else "",
    )  # fmt: skip
    return unbroken(visible(page))
