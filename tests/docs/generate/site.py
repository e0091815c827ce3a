"""The hook of mkdocs (mkdocs.yml): pages that only the site has, and links out of docs/.

The site has what the folder docs/ has, and, made when it is built: a page for each public class and
each command, and one for each notebook. Beside them it gets llms.txt and llms-full.txt.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

from tests.docs.generate import api, cli, llms, notebooks
from tests.docs.pages import DOCS

# The pages of an index: its path, and the modules that write it and them.
INDEXED = {"reference/api.md": ("api", api), "reference/cli.md": ("cli", cli)}
# A link's end, which may stand on a line of its own; images are files of docs/ and stay.
LINK = re.compile(r"\]\(\s*((?:\.\./)+[^)\s#]*)(#[^)\s]*)?\)")
CELLS = re.compile(r"^\|.*\|$", re.M)
SCRIPT = "https://unpkg.com/iframe-worker/shim"
_pages: list[Page] = []


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages below an index into the navigation."""
    (reference,) = (each["Reference"] for each in config.nav or [] if "Reference" in each)
    for at, entry in enumerate(reference):
        ((title, path),) = entry.items()
        if path in INDEXED:
            folder, module = INDEXED[path]
            inner: list[Any] = [{module.TITLE: path}]
            for group, titles in module.groups().items():
                found = [{each: f"reference/{folder}/{name}.md"} for each, name in titles.items()]
                inner += [{group: found}] if group else found
            reference[at] = {title: inner}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here."""
    made = {
        f"reference/{folder}/{name}.md": text
        for folder, module in INDEXED.values()
        for name, text in module.pages().items()
    }
    for notebook in sorted(DOCS.glob("notebooks/*.ipynb")):
        made[f"notebooks/{notebook.stem}.md"] = notebooks.to_markdown(notebook)
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Keep the pages in their order, for llms.txt."""
    _pages[:] = nav.pages
    return nav


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Return a page with its links to files outside of docs/ leading to the repository."""
    path = page.file.src_uri
    if path in INDEXED:
        markdown = INDEXED[path][1].index_page(is_site=True)

    def outward(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(path), link[1]))
        if target.startswith("docs/"):
            return link[0]
        return f"]({config.extra['repository']}/blob/main/{target}{link[2] or ''})"

    return CELLS.sub(_bars, LINK.sub(outward, markdown))


def _bars(row: re.Match[str]) -> str:
    """Return a row of a table whose code has its bars as they are: GitHub's need a backslash."""
    return re.sub(r"`[^`]+`", lambda code: code[0].replace("\\|", "|"), row[0])


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Return a page that fetches nothing from the net: the theme's search would, for one script."""
    return output.replace(SCRIPT, get_relative_url("assets/iframe-worker.js", page.url))


def on_post_template(output_content: str, **_: Any) -> str:
    """Do the same for the page that a server shows where there is none."""
    return output_content.replace(SCRIPT, "/assets/iframe-worker.js")


def on_post_build(config: MkDocsConfig) -> None:
    """Write the two files for language models beside the pages."""
    folder = Path(config.site_dir)
    (folder / "llms.txt").write_text(llms.index(_pages, config), encoding="utf-8")
    (folder / "llms-full.txt").write_text(llms.full(_pages), encoding="utf-8")
