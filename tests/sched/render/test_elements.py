"""SVG elements: words are escaped, values outside an axis stay on it, documents are XML."""

import xml.etree.ElementTree as ElementTree

from counterpoise.sched.render.elements import (
    Scale,
    document,
    element,
    text,
    tooltip,
)
from counterpoise.sched.render.palette import theme

WORDS = "<b> & \"quoted\" 'words'"
NS = "{http://www.w3.org/2000/svg}"


def test_words_come_out_as_they_went_in() -> None:
    parts = [text(0, 0, WORDS), element("circle", tooltip(WORDS), aria_label=WORDS)]
    root = ElementTree.fromstring(document(10, 10, parts, title=WORDS, style=theme({})))
    title, _, words, circle = root
    assert title.text == words.text == circle[0].text == circle.attrib["aria-label"] == WORDS
    assert root.tag == f"{NS}svg"


def test_values_outside_an_axis_are_placed_at_its_ends() -> None:
    up = Scale(1, 3, start=100, end=0)
    assert [up(value) for value in (-5, 1, 2, 3, 9)] == [100, 100, 50, 0, 0]


def test_an_axis_without_extent_has_one_place() -> None:
    assert Scale(2, 2, start=30, end=90)(2) == 30
