"""Draws horizontal bars for the page: stacked, with intervals, and small ones for table cells."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ....sched.render.elements import Scale, element, inline, number, text, tooltip
from .formats import percent

STACKED_PITCH, PITCH = 66, 32
# A part narrower than this has no room for its figure.
ROOM_FOR_TEXT = 46
# An interval of half the axis or more says that it is not known: it is neither drawn nor written.
UNKNOWN = 0.5


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


def bars(rows: Sequence[tuple[str, str, float, float]], width: int = 560) -> Markup:
    """Return a bar for each (name, CSS colour, share, half-width of its interval)."""
    left, room_for_figures = 76, 92
    highest = max(0.05, *(share + half for *_, share, half in rows))
    across = Scale(0, highest, start=left, end=width - room_for_figures)
    pieces = []
    for row, (name, colour, share, half) in enumerate(rows):
        top, end, figure = PITCH * row, across(share), percent(share)
        pieces.append(text(0, top + 18, name, "strong"))
        pieces.append(_bar(left, top + 4, max(1.0, end - left), 20, colour))
        if 0 < half < UNKNOWN:
            end = across(share + half)
            whisker = f"M{number(across(share - half))} {top + 14}H{number(end)}"
            pieces.append(element("path", class_="whisker", d=whisker))
            figure += f" ± {100 * half:.1f}"
        pieces.append(text(end + 8, top + 18, figure))
    label = ", ".join(f"{name} {percent(share)}" for name, _, share, _ in rows)
    return Markup(inline(width, PITCH * len(rows), pieces, label=label))


def meter(share: float, colour: str, width: int = 90) -> Markup:
    """Return a small bar for a table cell: a share of the full width, at least a pixel."""
    filled = max(1.0, min(1.0, share) * width)
    bar = element("rect", width=filled, height=10, rx=2, fill=f"var({colour})")
    return Markup(
        element(
            "svg", bar, class_="meter", width=width, height=10, viewBox=f"0 0 {width} 10",
            aria_hidden="true",
        )
    )  # fmt: skip


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
