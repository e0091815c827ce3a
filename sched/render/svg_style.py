"""The style sheet, patterns and legend of the SVG picture of timelines."""

from collections.abc import Iterator
from html import escape

from .elements import element, theme
from .palette import edge, ink, paint, tint
from .picture import is_staged, word

LINE_HEIGHT = 22
# Each with its light and its dark value; passes that hardly differ from the paper get an edge.
_COLOURS = {
    "paper": ("#fff", "#15181c"),
    "row": ("#f3f3f0", "#1b1f24"),
    "hatch": ("#d9d9d3", "#3d444d"),
    "grid": ("#e2e3e0", "#2b3036"),
    "end": ("#2b3037", "#dfe3e8"),
    "muted": ("#626a73", "#98a0a9"),
    "ink": ("#16191d", "#eceae4"),
    "memory": ("#74b9c4", "#3f7f9c"),
    "peak": ("#1c4e80", "#a9dcf0"),
    "light": ("rgb(0 0 0/.3)", "none"),
    "dark": ("none", "rgb(255 255 255/.38)"),
}
STYLE = (
    "\n"
    + theme(_COLOURS)
    + """svg{font:11px Inter,system-ui,"Segoe UI",Helvetica,Arial,sans-serif}
svg{font-feature-settings:"tnum"}
.paper{fill:var(--paper)}.row{fill:var(--row)}
.hatch{stroke:var(--hatch)}.grid{stroke:var(--grid)}.end{stroke:var(--end)}
text{fill:var(--muted)}.ink,.name{fill:var(--ink);font-weight:600}
.name{font-size:15px}.title{font-size:20px}.in{text-anchor:middle;font-weight:550}
.line{fill:none;stroke-linejoin:round}.m{stroke:var(--memory)}
.top{stroke:var(--peak);stroke-width:2.2}.under{fill:var(--peak);fill-opacity:.07}
.halo{paint-order:stroke;stroke:var(--paper);stroke-width:4px;stroke-linejoin:round}
"""
)
PATTERNS = """<pattern id="hatch" patternUnits="userSpaceOnUse" width="6" height="6"
 patternTransform="rotate(45)"><path class="hatch" d="M0 0V6" stroke-width="1.6"/></pattern>
<pattern id="stripes" patternUnits="userSpaceOnUse" width="6" height="6"
 patternTransform="rotate(-45)"><path d="M0 0V6" stroke="#fff" stroke-opacity=".26"
 stroke-width="2.2"/></pattern>"""


def fills(names: tuple[str, ...], chunks: int) -> str:
    """Return a class for each kind and chunk (kF0), and one for the text upon it (tF0).

    >>> fills(("B",), 1)
    '.kB0{fill:#fbb02d}.tB0{fill:#101418}'
    """
    rules: list[str] = []
    for name in names:
        for chunk in range(chunks if is_staged(name) else 1):
            fill = tint(paint(name, names).fill, chunk, chunks)
            if edge(fill):
                rules.append(f".k{name}{chunk}{{stroke:var(--{edge(fill)});stroke-width:.75}}")
            rules.append(f".k{name}{chunk}{{fill:{fill}}}.t{name}{chunk}{{fill:{ink(fill)}}}")
    return "\n".join(rules)


def legend(
    names: tuple[str, ...], chunks: int, left: float, right: float, y: float
) -> tuple[str, float]:
    """Return the legend, as many lines as it needs, and the upper edge of what follows it."""
    parts: list[str] = []
    x = left
    for looks, letter, words in _entries(names, chunks):
        # Roughly: box and gap, the words at their mean width, a gap to the next entry.
        width = 27 + 6.3 * len(f"{letter} {words}") + 16
        if x > left and x + width > right:
            x, y = left, y + LINE_HEIGHT
        parts += [element("rect", **look, x=x, y=y, width=20, height=13, rx=3) for look in looks]
        strong = element("tspan", escape(letter), class_="ink")
        parts.append(element("text", f"{strong} {escape(words)}", x=x + 27, y=y + 10.5))
        x += width
    return "".join(parts), y + LINE_HEIGHT + 12


def _entries(
    names: tuple[str, ...], chunks: int
) -> Iterator[tuple[list[dict[str, str]], str, str]]:
    """Yield the attributes of each entry's boxes, one upon the other, its letter and its words."""
    for name in names:
        stripes = [{"fill": "url(#stripes)"}] if paint(name, names).striped else []
        yield [{"class_": f"k{name}0"}, *stripes], name, word(name, names)
    staged = next((name for name in names if is_staged(name)), None)
    if chunks > 1 and staged:
        yield [{"class_": f"k{staged}{chunks - 1}"}], "", "later chunk: lighter"
    yield [{"class_": "row"}, {"fill": "url(#hatch)"}], "", "bubble"
