"""SVG elements: words are escaped, documents are XML."""

from xml.etree import ElementTree

from counterpoise.sched.render.palette import make_theme_css
from counterpoise.sched.render.svg import add, document, new_picture

WORDS = "<b> & \"quoted\" 'words'"


def test_words_come_out_as_they_went_in() -> None:
    picture = new_picture(WORDS, make_theme_css({}))
    add(picture, "text", WORDS, x=0, y=0)
    add(add(picture, "circle", aria_label=WORDS), "title", WORDS)
    root = ElementTree.fromstring(document(picture, 10, 10))
    title, _, _, words, circle = root
    assert title.text == words.text == circle[0].text == circle.attrib["aria-label"] == WORDS
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
