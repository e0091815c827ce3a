"""llms.txt and llms-full.txt: the site as language models read it (llmstxt.org)."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

# Sections whose pages are long and seldom needed: named in the list, and not written out.
LISTED_ONLY = ("Reference", "Benchmarks", "Internals", "Notebooks")


def index(pages: Sequence["Page"], config: "MkDocsConfig") -> str:
    """Return the list of all pages by sections, each with its first sentence."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    section = None
    for page in pages:
        if _section(page) != section:
            section = _section(page)
            lines += ["", f"## {section}", ""]
        told = first_sentence(page.markdown or "")
        lines.append(f"- [{page.title}]({page.file.dest_uri}): {told}")
    return "\n".join(lines) + "\n"


def full(pages: Sequence["Page"]) -> str:
    """Return the text of the pages that teach, one after another."""
    told = [page for page in pages if _section(page) not in LISTED_ONLY]
    return "\n\n".join(f"<!-- {page.file.src_uri} -->\n\n{page.markdown}" for page in told) + "\n"


def first_sentence(markdown: str) -> str:
    """Return the first sentence of a page's text, without its links.

    >>> first_sentence("# Title\\n\\nRead [tars](a.md) here. More.\\n")
    'Read tars here.'
    """
    text = re.sub(r"^```.*?^```", "", markdown, flags=re.S | re.M)
    paragraphs = (part.strip() for part in re.split(r"\n\s*\n", text))
    first = next((part for part in paragraphs if part[:1] not in ("", "#", "|", "<", "!", "`")), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", first).strip("*").replace("\n", " ")
    return re.sub(r":$", ".", re.split(r"(?<=[.!?:])\s", plain)[0])


def _section(page: "Page") -> str:
    """Return the title of the part of the navigation that a page is in."""
    outermost = [*page.ancestors][-1:]
    return str(outermost[0].title) if outermost else "Start"
