"""Elements, axes and documents of SVG pictures, as text: shared by every picture of the project.

Coordinates are pixels, y grows downward, and every number is written with at most one decimal.
Words are escaped here, so callers pass plain text.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

Attribute = str | float | None


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


def element(name: str, /, *content: str, **attributes: Attribute) -> str:
    """Return an element with its content, which is SVG already (see `text` for words).

    `class_` stands for class, other underscores for hyphens; attributes that are None are left out.

    >>> element("rect", x=1.25, width=30, class_="bar", stroke_width=None)
    '<rect x="1.2" width="30" class="bar"/>'
    """
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="'
        f'{escape(value) if isinstance(value, str) else number(value)}"'
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
    place = {"x": x, "y": y, "text_anchor": anchor or None, **attributes}
    return element("text", escape(words), class_=look or None, **place)


def tooltip(words: str) -> str:
    """Return the title that a viewer shows when the pointer is over the element around it."""
    return element("title", escape(words))


def vertical_lines(across: Scale, values: Iterable[float], top: float, bottom: float) -> str:
    """Return the path data of one line at each value of a horizontal scale."""
    return "".join(f"M{number(across(value))} {number(top)}V{number(bottom)}" for value in values)


def labels_below(across: Scale, labels: Iterable[tuple[float, str]], y: float) -> list[str]:
    """Return the labels of a horizontal axis, (value, words), centred, with their baseline at y."""
    return [text(across(value), y, words, anchor="middle") for value, words in labels]


def document(width: float, height: float, parts: Iterable[str], *, title: str, style: str) -> str:
    """Return a picture that is a file of its own, with its style sheet."""
    content = (f"\n{tooltip(title)}\n<style>{style}</style>\n", "\n".join(parts), "\n")
    named = {"xmlns": "http://www.w3.org/2000/svg", "role": "img"}
    box = f"0 0 {number(width)} {number(height)}"
    return element("svg", *content, width=width, height=height, viewBox=box, **named) + "\n"


def number(value: float) -> str:
    """Return a number with at most one decimal.

    >>> number(3.0), number(2.96), number(7), number(-0.01)
    ('3', '3', '7', '0')
    """
    words = f"{value:.1f}".removesuffix(".0")
    return "0" if words == "-0" else words
