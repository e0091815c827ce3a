"""The page's pictures as SVG text: bars, lines, a heat map, the frontier. Colours are CSS names."""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from markupsafe import Markup

from ..model.strategies import STRATEGIES

COLOURS = {name: f"--{name}" for name in STRATEGIES}
Points = Sequence[tuple[float, float]]
HEAT = 5


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a plot: name, CSS colour, points, half-widths of intervals; dashed or not."""

    name: str
    colour: str
    points: Points
    halves: Sequence[float] = ()
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a stacked bar: what it is, its CSS colour, its length."""

    name: str
    colour: str
    value: float


def stacked(rows: Sequence[tuple[str, Sequence[Part]]], width: int = 560) -> Markup:
    """Return horizontal stacked bars, all in one scale; a row's label stands above it."""
    most = max(sum(part.value for part in parts) for _, parts in rows) or 1.0
    pieces = []
    for number, (label, parts) in enumerate(rows):
        top = number * 66
        pieces.append(_text(0, top + 14, label, "strong big"))
        at = 0.0
        for part in parts:
            size = part.value / most * width
            title = f"{part.name}: {_percent(part.value)}"
            pieces.append(
                f'<rect x="{at:.1f}" y="{top + 23}" width="{max(0.0, size - 1.5):.1f}" height="28" '
                f'rx="3" fill="var({part.colour})"><title>{html.escape(title)}</title></rect>'
            )
            if size > 46:
                kind = "strong" if part.colour == "--padding" else "inside"
                pieces.append(_text(at + 8, top + 42, _percent(part.value), kind))
            at += size
    return _svg(width, 66 * len(rows) - 8, pieces, "; ".join(_said(*row) for row in rows))


def bars(rows: Sequence[tuple[str, str, float, float]], width: int = 560) -> Markup:
    """Return a bar for each (name, CSS colour, share, half-width of its interval)."""
    left, right = 76, 92
    scale = (width - left - right) / max(0.05, *(value + half for *_, value, half in rows))
    pieces = []
    for number, (name, colour, value, half) in enumerate(rows):
        top = number * 32
        end = left + value * scale
        pieces += [
            _text(0, top + 18, name, "strong"),
            f'<rect x="{left}" y="{top + 4}" width="{max(1.0, value * scale):.1f}" height="20" '
            f'rx="3" fill="var({colour})"/>',
        ]
        if 0 < half < 0.5:
            low, high = left + max(0.0, value - half) * scale, left + (value + half) * scale
            pieces.append(f'<path class="whisker" d="M{low:.1f} {top + 14}H{high:.1f}"/>')
            end = high
        pieces.append(_text(end + 8, top + 18, _percent(value) + _half(half)))
    return _svg(width, 32 * len(rows), pieces, ", ".join(f"{r[0]} {_percent(r[2])}" for r in rows))


def lines(
    found: Sequence[Line],
    title: str,
    ticks: Sequence[float],
    most: float,
    across: str,
    width: int = 330,
    height: int = 168,
    labelled: bool = False,
    tick: Callable[[float], str] = "{:g}".format,
    least: float = 0.0,
) -> Markup:
    """Return a plot of shares (0 to most) over ticks that stand evenly apart.

    labelled: write names at the lines' right ends, moved apart where they would touch.
    """
    left, top, bottom, right = 38, 24, 36, 70 if labelled else 14
    inner, tall = width - left - right, height - top - bottom
    place = {value: left + inner * k / max(1, len(ticks) - 1) for k, value in enumerate(ticks)}

    def y(value: float) -> float:
        return top + tall * (1 - (min(max(value, least), most) - least) / (most - least))

    pieces = [_text(left, 13, title, "strong")] if title else []
    for k in range(3):
        level = least + (most - least) * k / 2
        pieces.append(f'<path class="rule" d="M{left} {y(level):.1f}H{left + inner}"/>')
        pieces.append(_text(left - 6, y(level) + 4, _percent(level, 0), "end"))
    pieces += [_text(place[at], top + tall + 16, tick(at), "middle") for at in ticks]
    pieces.append(_text(left + inner / 2, top + tall + 31, across, "middle"))
    ends = []
    for line in found:
        drawn = [(place[x], y(value)) for x, value in line.points]
        if not drawn:
            continue
        pieces += _band(line, place, y)
        path = "L".join(f"{a:.1f} {b:.1f}" for a, b in drawn)
        dashed = " dashed" if line.dashed else ""
        pieces.append(f'<path class="line{dashed}" stroke="var({line.colour})" d="M{path}"/>')
        for (a, b), (_, value) in zip(drawn, line.points, strict=True):
            words = html.escape(f"{line.name}: {_percent(value)}")
            pieces.append(
                f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="var({line.colour})">'
                f"<title>{words}</title></circle>"
            )
        ends.append((drawn[-1][1], line))
    if labelled:
        pieces += [
            f'<text x="{left + inner + 9}" y="{at + 4:.1f}" style="fill:var({line.colour})">'
            f"{html.escape(line.name)}</text>"
            for at, line in _apart(ends)
        ]
    return _svg(width, height, pieces, f"{title} over {across}")


def heat(
    across: Sequence[int],
    up: Sequence[int],
    counts: Sequence[Sequence[int]],
    budgets: tuple[int, int] | None,
    width: int = 560,
) -> Markup:
    """Return the joint histogram of tokens (across) and tiles (up), with the budgets as lines.

    Colours are steps of the logarithm of the count.
    """
    left, top, bottom, right = 40, 24, 38, 12
    columns, rows = len(across) - 1, len(up) - 1
    wide = (width - left - right) / columns
    tall = min(20.0, 300 / rows)
    height = top + bottom + tall * rows
    most = np.log1p(max(max(row) for row in counts))
    pieces = []
    for y, row in enumerate(counts):
        for x, count in enumerate(row):
            if not count:
                continue
            level = min(HEAT - 1, int(np.log1p(count) / most * HEAT))
            words = f"{up[y]}+ tiles, {across[x]:,}+ tokens: {count:,} samples"
            pieces.append(
                f'<rect x="{left + x * wide:.1f}" y="{height - bottom - (y + 1) * tall:.1f}" '
                f'width="{wide - 1:.1f}" height="{tall - 1:.1f}" fill="var(--heat-{level})">'
                f"<title>{words}</title></rect>"
            )
    base = height - bottom
    pieces.append(f'<path class="axis" d="M{left} {base:.1f}H{width - right}"/>')
    pieces += [
        _text(left + k * wide, base + 16, f"{across[k]:,}", "middle")
        for k in range(0, columns + 1, max(1, columns // 6))
    ]
    pieces += [
        _text(left - 7, base - (k + 0.5) * tall + 4, f"{up[k]}", "end")
        for k in range(0, rows, max(1, -(-rows // 6)))
    ]
    pieces.append(_text(left + (width - left - right) / 2, height - 4, "tokens", "middle"))
    pieces.append(_text(0, 11, "tiles"))
    if budgets is not None:
        right_of = min(left + budgets[1] / (across[1] - across[0]) * wide, width - right)
        over = max(base - (budgets[0] + 1) / (up[1] - up[0]) * tall, top)
        path = f"M{left} {over:.1f}H{right_of:.1f}V{base:.1f}"
        pieces.append(f'<path class="line dashed" stroke="var(--random)" d="{path}"/>')
        pieces.append(_text(right_of - 6, over + 14, "budget", "strong end halo"))
    return _svg(width, round(height), pieces, "how many samples have how many tiles and tokens")


def feasible(
    border: Sequence[tuple[int, int]],
    marks: Sequence[tuple[str, str, int, int]],
    tried: Sequence[tuple[int, int, str]],
    width: int = 560,
) -> Markup:
    """Return the budgets that fit in memory, below the border, and marks (name, colour, x, y).

    border: (tokens, most tiles) ascending; tried: (tokens, tiles, words) of the search.
    """
    left, top, bottom, right, height = 40, 10, 38, 20, 290
    known = [(float(x), float(y)) for x, y in (*border, *((x, y) for _, _, x, y in marks))]
    widest = max(x for x, _ in known) * 1.06 or 1
    highest = max(y for _, y in known) * 1.25 or 1
    inner, tall = width - left - right, height - top - bottom

    def place(x: float, y: float) -> tuple[float, float]:
        return left + inner * x / widest, top + tall * (1 - y / highest)

    pieces = []
    base = top + tall
    if border:
        path = "L".join("{:.1f} {:.1f}".format(*place(x, y)) for x, y in border)
        end = place(border[-1][0], 0)[0]
        pieces.append(f'<path class="area" d="M{left} {base}L{path}L{end:.1f} {base}Z"/>')
        pieces.append(f'<path class="line" stroke="var(--balanced)" d="M{path}"/>')
        pieces.append(_text(end - 8, base - 8, "fits in memory", "end halo"))
    for k in range(5):
        tokens, tiles = widest * k / 4, highest * k / 4
        pieces.append(_text(place(tokens, 0)[0], base + 16, f"{_round(tokens):,}", "middle"))
        pieces.append(_text(left - 7, place(0, tiles)[1] + 4, f"{tiles:.0f}", "end"))
    pieces.append(f'<path class="axis" d="M{left} {base}H{left + inner}M{left} {top}V{base}"/>')
    pieces.append(_text(left + inner / 2, height - 3, "budget of tokens", "middle"))
    pieces.append(_text(left + 6, top + 8, "budget of tiles"))
    for x, y, words in tried:
        if x <= widest and y <= highest:
            a, b = place(x, y)
            pieces.append(
                f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="var(--muted)" opacity=".55">'
                f"<title>{html.escape(words)}</title></circle>"
            )
    for name, colour, x, y in marks:
        a, b = place(x, y)
        side = "end" if a > width / 2 else ""
        above = y >= max(other[3] for other in marks)
        pieces.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="6" fill="var({colour})"/>')
        shift, below = -11 if side else 11, -9 if above else 18
        words = f"{name} {y} tiles, {x:,}"
        pieces.append(_text(a + shift, b + below, words, f"strong halo {side}"))
    return _svg(width, height, pieces, "budgets of tiles and tokens that fit in memory")


def rounded(value: float) -> float:
    """Return the next 1, 2, 4, 6, 8 times a power of ten: the top of an axis.

    >>> rounded(0.43), rounded(0.07), rounded(0.9)
    (0.6, 0.08, 1.0)
    """
    power = 10.0 ** np.floor(np.log10(value))
    top = next(k * power for k in (1, 2, 4, 6, 8, 10) if k * power >= value - 1e-9)
    return round(float(top), 12)


def meter(share: float, colour: str, width: int = 90) -> Markup:
    """Return a small bar for a table cell: share of the full width."""
    size = max(1.0, min(1.0, share) * width)
    return Markup(
        f'<svg width="{width}" height="10" viewBox="0 0 {width} 10" aria-hidden="true" '
        'style="display:inline-block;vertical-align:-1px">'
        f'<rect width="{size:.1f}" height="10" rx="2" fill="var({colour})"/></svg>'
    )


def _band(line: Line, place: dict[float, float], y: Callable[[float], float]) -> list[str]:
    """The interval around a line, where it is known."""
    known = [
        (place[x], value, half)
        for (x, value), half in zip(line.points, line.halves, strict=False)
        if half < 0.5
    ]
    if len(known) < 2:
        return []
    upper = [f"{a:.1f} {y(value + half):.1f}" for a, value, half in known]
    lower = [f"{a:.1f} {y(value - half):.1f}" for a, value, half in reversed(known)]
    path = "L".join(upper + lower)
    return [f'<path class="band" fill="var({line.colour})" d="M{path}Z"/>']


def _apart(ends: list[tuple[float, Line]], gap: float = 13.0) -> list[tuple[float, Line]]:
    """Labels at their lines' ends, pushed down until none touches the one above."""
    places = sorted(ends, key=lambda end: end[0])
    moved = [at for at, _ in places]
    for k, _ in enumerate(moved[1:], start=1):
        moved[k] = max(moved[k], moved[k - 1] + gap)
    if any(b - a < gap - 1e-9 for a, b in pairwise(moved)):
        raise ValueError("labels overlap")
    return [(at, line) for at, (_, line) in zip(moved, places, strict=True)]


def _svg(width: float, height: float, pieces: Sequence[str], label: str) -> Markup:
    return Markup(
        f'<svg width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{html.escape(label, quote=True)}">' + "".join(pieces) + "</svg>"
    )


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{html.escape(words)}</text>'


def _percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f} %"


def _half(half: float) -> str:
    return f" ± {100 * half:.1f}" if 0 < half < 0.5 else ""


def _said(label: str, parts: Sequence[Part]) -> str:
    return f"{label}: " + ", ".join(f"{part.name} {_percent(part.value)}" for part in parts)


def _round(value: float) -> int:
    """Two digits that matter, for ticks."""
    size = 10 ** max(0, len(str(int(value))) - 2)
    return int(round(value / size) * size)
