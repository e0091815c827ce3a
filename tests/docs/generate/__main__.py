"""Write the generated pages: `python -P -m tests.docs.generate [FOLDER]`, by default docs/.

Tests hold the committed pages equal to what this writes.
"""

import sys
from pathlib import Path

from tests.docs.generate.api import api_page
from tests.docs.generate.protocol import protocol_page

DOCS = Path(__file__).resolve().parents[3] / "docs"


def main(arguments: list[str]) -> None:
    """Write all pages into the folder named, by default the checkout's docs/."""
    folder = Path(arguments[0]) if arguments else DOCS
    (folder / "reference" / "api.md").write_text(api_page(), encoding="utf-8")
    (folder / "internals" / "protocol.md").write_text(protocol_page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
