"""Count what a reader reads, and how hard it is: `python -P -m tests.docs.words`, of `make docs`.

Words are those of text and tables, without blocks of code. Flesch's reading ease is that of the
text alone: 100 is easy, 50 is a quality newspaper, 30 a scientific paper. Its formula is computed
here from the syllables of pyphen: newer releases of textstat install a package `tests`, which hides
ours, or download a dictionary, and older ones need a part of setuptools that is gone.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pyphen

from tests.docs.pages import DOCS, all_pages
from tests.imports import ROOT

GUIDES = ("guides", "pipelines")
MOST_WORDS, LEAST_EASE, MOST_TO_ADOPT = 900, 50.0, 4000
# What one reads to adopt the product, besides the guide for one's own way.
ADOPT = (ROOT / "README.md", DOCS / "start.md", DOCS / "which.md")

_SYLLABLES = pyphen.Pyphen(lang="en_US")


@dataclass(frozen=True)
class Measure:
    """A page, its words, and how easily its text is read."""

    page: Path
    words: int
    ease: float

    @property
    def is_within(self) -> bool:
        """Whether a guide may be so."""
        return self.words <= MOST_WORDS and self.ease >= LEAST_EASE


def measure(page: Path) -> Measure:
    """Return the measure of a page."""
    return Measure(page, *measured(page.read_text(encoding="utf-8")))


def measured(markdown: str) -> tuple[int, float]:
    """Return the words of a Markdown text, and the ease of what stands outside of its tables.

    >>> measured("# A page\\n\\nIt *is* short.\\n\\n| a | b c |\\n| -- | -- |\\n")
    (8, 119.19)
    """
    text = re.sub(r"^(```+).*?^\1", "", markdown, flags=re.S | re.M)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    words = re.findall(r"[^\s|*#`]*\w[^\s|*`]*", text)
    lines = [line for line in text.splitlines() if not re.match(r"\s*(\||#|<!--)", line)]
    # What is in code is read as one word, whatever it is; an entry of a list ends like a sentence.
    prose = re.sub(r"`[^`]*`", "code", "\n".join(lines))
    return len(words), reading_ease(re.sub(r"[.:;,]?\n\s*(?:[-*]|\d+\.)\s", ".\n", prose))


def reading_ease(prose: str) -> float:
    """Return Flesch's reading ease ("A new readability yardstick", 1948) of an English text.

    >>> reading_ease("The cat sat. The dog ran.")
    119.19
    """
    words = re.findall(r"[A-Za-z][A-Za-z']*", prose)
    sentences = len(re.findall(r"[.!?](?=\W|$)", prose))
    syllables = sum(len(_SYLLABLES.positions(word)) + 1 for word in words)
    count = max(1, len(words))
    return round(206.835 - 1.015 * count / max(1, sentences) - 84.6 * syllables / count, 2)


def guides() -> list[Measure]:
    """Return the measures of all guides."""
    pages = [page for folder in GUIDES for page in sorted((DOCS / folder).glob("*.md"))]
    return [measure(page) for page in pages]


def to_adopt() -> int:
    """Return the words that a reader needs whose guide is the longest one."""
    own = sum(measure(page).words for page in ADOPT)
    return own + max(each.words for each in guides())


def main() -> int:
    """Print a table of all pages; return 1 where a guide is over a limit."""
    wrong = [each for each in guides() if not each.is_within]
    print(f"{'page':50} {'words':>6} {'Flesch':>7}")
    for page in all_pages():
        if "adr" not in page.parts:
            each = measure(page)
            print(f"{page.relative_to(ROOT)!s:50} {each.words:6,} {each.ease:7.1f}")
    print(f"to adopt: {to_adopt():,} words of {MOST_TO_ADOPT:,} (README, start, which, a guide)")
    for each in wrong:
        print(
            f"{each.page.name}: {each.words} words, Flesch {each.ease:.1f}; a guide has"
            f" {MOST_WORDS} words at most, and {LEAST_EASE:g} at least",
            file=sys.stderr,
        )
    return int(bool(wrong) or to_adopt() > MOST_TO_ADOPT)


if __name__ == "__main__":
    sys.exit(main())
