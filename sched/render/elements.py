"""Elements, axes and documents of SVG pictures, as text: shared by every picture of the project.

Coordinates are pixels, y grows downward, and every number is written with at most one decimal.
Words are escaped here, so callers pass plain text:

    across, up = Scale(0, 90, start=40, end=300), Scale(0, 1, start=180, end=10)
    parts = [
        element("path", class_="grid", d=horizontal_lines(up, (0, 0.5, 1), 40, 300)),
        *labels_below(across, [(0, "0 s"), (90, "90 s")], y=196),
        *labels_left(up, [(0, "0 %"), (1, "100 %")], x=34),
        element("path", class_="line", d=line((across(x), up(y)) for x, y in points)),
        element("circle", tooltip("the peak"), cx=across(30), cy=up(0.9), r=3),
    ]
    picture = document(320, 210, parts, title="Load", style=theme({"ink": ("#111", "#eee")}))

Colours come from a style sheet: `theme` makes one whose variables differ in light and dark mode.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape

Attribute = str | float | None
Labels = Iterable[tuple[float, str]]


@dataclass(frozen=True, slots=True)
class Scale:
    """The linear map of an axis: values low to high become pixels start to end.

    A value outside is placed at the nearer end. If high is not above low, every value is at start.

    >>> up = Scale(0, 2, start=100, end=0)
    >>> up(0.5), up(3)
    (75.0, 0.0)
    """

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        if self.high <= self.low:
            return float(self.start)
        share = (value - self.low) / (self.high - self.low)
        return self.start + (self.end - self.start) * min(1.0, max(0.0, share))

    def ticks(self, count: int) -> tuple[float, ...]:
        """Return `count` (2 or more) evenly spaced values from low to high.

        >>> Scale(0, 2, 0, 1).ticks(5)
        (0.0, 0.5, 1.0, 1.5, 2.0)
        """
        return tuple(self.low + (self.high - self.low) * k / (count - 1) for k in range(count))


def element(name: str, /, *content: str, **attributes: Attribute) -> str:
    """Return an element with its content, which is SVG already (see `text` for words).

    `class_` stands for class, other underscores for hyphens; attributes that are None are left out.

    >>> element("rect", x=1.25, width=30, class_="bar", stroke_width=None)
    '<rect x="1.2" width="30" class="bar"/>'
    """
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(content)
    return f"<{name}{words}>{inside}</{name}>" if inside else f"<{name}{words}/>"


def text(
    x: float, y: float, words: str, look: str = "", *, anchor: str = "", **attributes: Attribute
) -> str:
    """Return words whose baseline starts at (x, y); anchor "middle" or "end" aligns them there.

    `look`: CSS classes.

    >>> text(5, 9.5, "a < b", "strong", anchor="end")
    '<text class="strong" x="5" y="9.5" text-anchor="end">a &lt; b</text>'
    """
    return element(
        "text",
        escape(words),
        class_=look or None,
        x=x,
        y=y,
        text_anchor=anchor or None,
        **attributes,
    )


def tooltip(words: str) -> str:
    """Return the title that a viewer shows when the pointer is over the element around it."""
    return element("title", escape(words))


def line(points: Iterable[tuple[float, float]], *, close: bool = False) -> str:
    """Return the path data ("d") of straight lines through points.

    >>> line([(0, 0), (10, 2.55), (20, 0)], close=True)
    'M0 0L10 2.5L20 0Z'
    """
    joined = "L".join(f"{number(x)} {number(y)}" for x, y in points)
    return f"M{joined}{'Z' if close else ''}"


def horizontal_lines(up: Scale, values: Iterable[float], left: float, right: float) -> str:
    """Return the path data of one line at each value of a vertical scale.

    >>> horizontal_lines(Scale(0, 1, 100, 0), (0, 0.5), 10, 90)
    'M10 100H90M10 50H90'
    """
    return "".join(f"M{number(left)} {number(up(value))}H{number(right)}" for value in values)


def vertical_lines(across: Scale, values: Iterable[float], top: float, bottom: float) -> str:
    """Return the path data of one line at each value of a horizontal scale."""
    return "".join(f"M{number(across(value))} {number(top)}V{number(bottom)}" for value in values)


def labels_below(across: Scale, labels: Labels, y: float) -> list[str]:
    """Return the labels of a horizontal axis, (value, words), centred, with their baseline at y."""
    return [text(across(value), y, words, anchor="middle") for value, words in labels]


def labels_left(up: Scale, labels: Labels, x: float) -> list[str]:
    """Return the labels of a vertical axis, (value, words), that end at x."""
    return [text(x, up(value) + 4, words, anchor="end") for value, words in labels]


def theme(colours: Mapping[str, tuple[str, str]]) -> str:
    r"""Return a style sheet that defines CSS variables, each with a light and a dark value.

    >>> theme({"ink": ("#000", "#fff")})
    'svg{--ink:#000}\n@media (prefers-color-scheme:dark){svg{--ink:#fff}}\n'
    """
    light = ";".join(f"--{name}:{values[0]}" for name, values in colours.items())
    dark = ";".join(f"--{name}:{values[1]}" for name, values in colours.items())
    return f"svg{{{light}}}\n@media (prefers-color-scheme:dark){{svg{{{dark}}}}}\n"


def document(
    width: float, height: float, parts: Iterable[str], *, title: str, style: str, defs: str = ""
) -> str:
    """Return a picture that is a file of its own, with its style sheet and definitions."""
    return (
        element(
            "svg",
            f"\n{tooltip(title)}\n<style>{style}</style>\n",
            f"<defs>{defs}</defs>\n" if defs else "",
            "\n".join(parts),
            "\n",
            xmlns="http://www.w3.org/2000/svg",
            width=width,
            height=height,
            viewBox=f"0 0 {number(width)} {number(height)}",
            role="img",
        )
        + "\n"
    )


def inline(width: float, height: float, parts: Iterable[str], *, label: str) -> str:
    """Return a picture inside a page, whose style sheet it uses; screen readers read the label."""
    return element(
        "svg",
        *parts,
        width=width,
        height=height,
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        aria_label=label,
    )


def number(value: float) -> str:
    """Return a number with at most one decimal.

    >>> number(3.0), number(2.96), number(7), number(-0.01)
    ('3', '3', '7', '0')
    """
    words = f"{value:.1f}".removesuffix(".0")
    return "0" if words == "-0" else words


def _attribute(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else number(value)
