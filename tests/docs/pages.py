"""The code blocks of README.md, docs/, and what coding agents read: Python, and commands."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.imports import ROOT

DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)
PROGRAMS = ("counterpoise", "make", "pip", "python", "torchrun")
# In these every line is a command; in a block without a language only those that look like one.
SHELLS = ("bash", "console", "sh", "shell")


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, the line of its first line, its language, its text."""

    page: str
    line: int
    language: str
    text: str


def all_pages() -> list[Path]:
    """Return README.md, AGENTS.md, and every page below docs/ and skills/."""
    below = (page for folder in (DOCS, ROOT / "skills") for page in sorted(folder.rglob("*.md")))
    return [ROOT / "README.md", ROOT / "AGENTS.md", *below]


def page_named(name: str) -> Path:
    """Return the page with this file name, in whatever section of docs/ it stands."""
    (found,) = DOCS.rglob(f"{name}.md")
    return found


def blocks(*languages: str) -> Iterator[Block]:
    """Yield the blocks in these languages, page by page."""
    for path in all_pages():
        page = path.read_text()
        for found in BLOCK.finditer(page):
            if found[1] in languages:
                line = page.count("\n", 0, found.start()) + 2
                yield Block(str(path.relative_to(ROOT)), line, found[1], found[2])


def commands() -> Iterator[tuple[Block, list[str]]]:
    """Yield the words of each command, with the block that it is in."""
    for block in blocks("", *SHELLS):
        prompted = re.search(r"^\$ ", block.text, re.M) is not None
        for line in block.text.replace("\\\n", " ").splitlines():
            # where a block has prompts, its other lines are output
            if prompted and not line.startswith("$ "):
                continue
            plain = line.removeprefix("$ ")
            looks = plain.split(" ")[0] in PROGRAMS
            if looks or (block.language in SHELLS and plain.split("#")[0].strip()):
                yield block, shlex.split(plain, comments=True)
