"""The generated pages are made from code, and committed as made."""

import pytest

from counterpoise.balancer.protocol.messages import KINDS
from tests.docs.generate.api import PACKAGES, api_page
from tests.docs.generate.protocol import protocol_page
from tests.docs.pages import page_named


@pytest.mark.parametrize(("name", "page"), [("api", api_page), ("protocol", protocol_page)])
def test_the_committed_page_is_current(name: str, page) -> None:
    assert page_named(name).read_text() == page(), "run `make docs`"


def test_every_kind_of_message_is_on_the_page() -> None:
    page = protocol_page()
    assert [name for name in KINDS if f"**{name}**" not in page] == []


def test_every_public_package_has_a_section_with_names() -> None:
    sections = api_page().split("\n## ")[1:]
    assert [section.split("\n")[0] for section in sections] == list(PACKAGES)
    assert "### DataLoader" in api_page()
