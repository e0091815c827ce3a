"""The protocol's page is made from the tables, and committed as made."""

from pathlib import Path

from counterpoise.balancer.protocol.messages import KINDS
from counterpoise.tools.write_docs import protocol_page


def test_the_committed_page_is_current(root: Path) -> None:
    assert (root / "docs" / "protocol.md").read_text() == protocol_page(), "run `make docs`"


def test_every_kind_of_message_stands_on_the_page() -> None:
    page = protocol_page()
    assert [name for name in KINDS if f"**{name}**" not in page] == []
