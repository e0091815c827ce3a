"""A notebook as a Markdown page: its text, its code, and the outputs that are kept in it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote


def to_markdown(notebook: Path) -> str:
    """Return the page of a notebook, with a link to the notebook itself behind its title."""
    parts = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            parts.append(f"```python\n{source}\n```")
            parts += [part for output in cell["outputs"] for part in _output(output)]
    # on the site the other notebooks are pages, too
    title, *rest = (part.replace(".ipynb)", ".md)") for part in parts)
    download = f"[Download this notebook]({notebook.name}){{ download }}"
    return "\n\n".join([title, download, *rest]) + "\n"


def _output(output: dict[str, Any]) -> Iterator[str]:
    """Yield what one output shows: the richest form that a page can hold."""
    data = output.get("data", {"text/plain": output.get("text", "")})
    text = {kind: "".join(value) for kind, value in data.items()}
    if "image/svg+xml" in text:
        yield _picture(f"data:image/svg+xml,{quote(text['image/svg+xml'])}")
    elif "image/png" in text:
        yield _picture(f"data:image/png;base64,{text['image/png'].strip()}")
    else:
        lines = text["text/plain"].rstrip("\n")
        yield f'<div class="output" markdown>\n\n```text\n{lines}\n```\n\n</div>'


def _picture(source: str) -> str:
    image = f'<img alt="The picture that the code above draws" src="{source}">'
    return f'<div class="output">{image}</div>'
