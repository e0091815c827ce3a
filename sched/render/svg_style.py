"""The looks of the still picture: its style sheet, its patterns, its legend."""

from collections.abc import Iterator
from xml.sax.saxutils import escape

from .palette import edge, ink, paint, tint
from .picture import is_staged, word

LINE_HEIGHT = 22
STYLE = """
svg{--light:rgb(0 0 0/.3);--dark:none}
svg{font:11px Inter,system-ui,"Segoe UI",Helvetica,Arial,sans-serif;font-feature-settings:"tnum"}
.paper{fill:#fff}.row{fill:#f3f3f0}.hatch{stroke:#d9d9d3}.grid{stroke:#e2e3e0}.end{stroke:#2b3037}
text{fill:#626a73}.ink,.name{fill:#16191d;font-weight:600}.name{font-size:15px}.title{font-size:20px}
.right{text-anchor:end}.middle{text-anchor:middle}
.in{text-anchor:middle;font-weight:550}.line{fill:none;stroke-linejoin:round}.top{stroke-width:2.2}
.under{fill:#1c4e80;fill-opacity:.07}.m{stroke:#74b9c4}.top{stroke:#1c4e80}
.halo{paint-order:stroke;stroke:#fff;stroke-width:4px;stroke-linejoin:round}
@media (prefers-color-scheme:dark){
svg{--light:none;--dark:rgb(255 255 255/.38)}
.paper{fill:#15181c}.row{fill:#1b1f24}.hatch{stroke:#3d444d}.grid{stroke:#2b3036}.end{stroke:#dfe3e8}
text{fill:#98a0a9}.ink,.name{fill:#eceae4}.under{fill:#a9dcf0}.m{stroke:#3f7f9c}.top{stroke:#a9dcf0}
.halo{stroke:#15181c}}
"""
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
    """Return the legend, as many lines as it needs, and where what follows it begins."""
    parts: list[str] = []
    x = left
    for looks, letter, said in _entries(names, chunks):
        width = 27 + 6.3 * len(f"{letter} {said}") + 16
        if x > left and x + width > right:
            x, y = left, y + LINE_HEIGHT
        box = f'x="{x:.1f}" y="{y}" width="20" height="13" rx="3"'
        parts += [f"<rect {look} {box}/>" for look in looks]
        words = f'<tspan class="ink">{letter}</tspan> {escape(said)}'
        parts.append(f'<text x="{x + 27:.1f}" y="{y + 10.5}">{words}</text>')
        x += width
    return "".join(parts), y + LINE_HEIGHT + 12


def _entries(names: tuple[str, ...], chunks: int) -> Iterator[tuple[list[str], str, str]]:
    """What lies in an entry's box, its letter and its words."""
    for name in names:
        stripes = ['fill="url(#stripes)"'] if paint(name, names).striped else []
        yield [f'class="k{name}0"', *stripes], name, word(name, names)
    staged = next((name for name in names if is_staged(name)), None)
    if chunks > 1 and staged:
        yield [f'class="k{staged}{chunks - 1}"'], "", "later chunk: lighter"
    yield ['class="row"', 'fill="url(#hatch)"'], "", "bubble"
