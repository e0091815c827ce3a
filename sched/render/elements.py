"""SVG pictures of the standard library's elements: coordinates are pixels, y grows downward."""

from collections.abc import Callable, Iterable
from xml.etree.ElementTree import Element, SubElement, tostring


def new_picture(title: str, style: str) -> Element:
    """Return a picture with nothing on its paper but a style sheet."""
    root = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img"})
    add(root, "title", title)
    add(root, "style", style)
    add(root, "rect", width="100%", height="100%", rx=10, fill="var(--paper)")
    return root


def add(parent: Element, name: str, words: str = "", **attributes: str | float) -> Element:
    """Add an element to another, with words in it if any; numbers get one decimal at most.

    `class_` stands for class, other underscores for hyphens.
    """
    written = {
        key.rstrip("_").replace("_", "-"): value if isinstance(value, str) else number(value)
        for key, value in attributes.items()
    }
    element = SubElement(parent, name, written)
    element.text = words or None
    if parent.tag == "svg":
        element.tail = "\n"
    return element


def add_axis(
    root: Element, across: Callable[[float], float], labels: Iterable[tuple[float, str]],
    top: float, bottom: float,
) -> None:  # fmt: skip
    """Add a line at each value of a horizontal axis, and its label below."""
    for value, words in labels:
        x = across(value)
        add(root, "line", class_="grid", x1=x, x2=x, y1=top, y2=bottom)
        add(root, "text", words, x=x, y=bottom + 14, text_anchor="middle")


def document(root: Element, width: float, height: float) -> str:
    """Return a picture as a file of its own."""
    root.attrib |= {"width": number(width), "height": number(height)}
    root.set("viewBox", f"0 0 {number(width)} {number(height)}")
    return tostring(root, encoding="unicode") + "\n"


def number(value: float) -> str:
    """Return a number with at most one decimal.

    >>> number(3.0), number(2.96), number(7), number(-0.01)
    ('3', '3', '7', '0')
    """
    words = f"{value:.1f}".removesuffix(".0")
    return "0" if words == "-0" else words
