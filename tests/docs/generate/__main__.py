"""Write the generated pages that are kept: `python -P -m tests.docs.generate [FOLDER]`.

By default into docs/. Tests hold the committed pages equal to what this writes.
"""

import sys
from pathlib import Path

from tests.docs.generate import api, cli
from tests.docs.generate.protocol import protocol_page
from tests.docs.pages import DOCS


def main(arguments: list[str]) -> None:
    """Write all pages into the folder named, by default the checkout's docs/."""
    folder = Path(arguments[0]) if arguments else DOCS
    (folder / "reference" / "api.md").write_text(api.index_page(), encoding="utf-8")
    (folder / "reference" / "cli.md").write_text(cli.index_page(), encoding="utf-8")
    (folder / "internals" / "protocol.md").write_text(protocol_page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
