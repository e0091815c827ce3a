"""The diffs of the guides to programs are in the files that tests/programs run."""

import pytest

from tests.docs.pages import Block, blocks
from tests.imports import ROOT

DIFFS = [*blocks("diff")]


def code_lines(text: str) -> list[str]:
    """Return the lines of a file that do something: neither blank, nor its docstring.

    Without what they say to mypy.
    """
    lines = (line.split("  # type: ignore")[0] for line in text.splitlines())
    return [line for line in lines if line and not line.startswith('"""')]


@pytest.mark.parametrize("block", DIFFS, ids=lambda block: block.text.split()[1])
def test_a_diff_is_what_a_program_is_tested_with(block: Block) -> None:
    head, *lines = block.text.splitlines()
    mark, path = head.split()
    added = [line[1:] for line in lines if line.startswith("+")]
    code = code_lines((ROOT / path).read_text())
    if mark == "+++":  # a new file
        assert code == added
    else:
        assert {line.strip() for line in code} >= {*added}


def test_the_pages_have_diffs() -> None:
    names = ("programs", "rollouts", "your-script")
    pages = {f"docs/guides/{name}.md" for name in names}
    assert {block.page for block in DIFFS} == pages
