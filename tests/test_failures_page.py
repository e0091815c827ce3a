"""docs/reference/failures.md names the tests that show what it promises: they must exist."""

import re

import pytest

from tests.docs.pages import page_named

NAMED = re.compile(r"`(test_\w+\.py)(?:::(test_\w+))?`")


@pytest.fixture(scope="module")
def page(root):
    return page_named("failures").read_text()


def test_each_test_that_is_named_exists(page, root):
    tests: dict[str, str] = {}
    for path in (root / "tests").rglob("test_*.py"):
        tests[path.name] = tests.get(path.name, "") + path.read_text()
    named = set(NAMED.findall(page))
    assert len(named) > 20
    missing = [
        (file, name)
        for file, name in named
        if file not in tests or (name and f"def {name}(" not in tests[file])
    ]
    assert not missing


def test_each_row_of_a_promise_names_what_shows_it(page):
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    rules = {row for row in rows if set(row) <= set("|- ")}  # the lines below a table's head
    promises = [row for row in rows if "shown by" not in row and row not in rules]
    assert len(promises) > 20
    assert [row for row in promises if "`" not in row.rstrip(" |").rpartition("|")[2]] == []
