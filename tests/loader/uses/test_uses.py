"""Each row of the table in uses.md: the use is tried with torch's loader and with ours."""

import pytest

from tests.loader.uses import contents, copying, in_workers, looping, options
from tests.loader.uses.kinds import USES, outcome
from tests.loader.uses.table import PAGE, Row, is_told, read_rows

pytestmark = pytest.mark.slow

MODULES = (contents, copying, in_workers, looping, options)  # importing them registers the uses
LEAST = 30


@pytest.mark.parametrize("row", read_rows(), ids=lambda row: row.use)
def test_a_use_does_what_the_page_says(row: Row) -> None:
    theirs = outcome(row.use, "torch")
    assert is_told(row.torch, theirs, theirs), theirs
    plain = outcome(row.use, "plain")
    assert is_told(row.plain, plain, theirs), (plain, theirs)
    balanced = outcome(row.use, "balanced")
    assert is_told(row.balanced, balanced, theirs), (balanced, theirs)


def test_every_use_has_one_row() -> None:
    told = [row.use for row in read_rows()]
    assert sorted(told) == sorted(USES)
    assert len(told) >= LEAST
    assert {use.__module__ for use in USES.values()} == {each.__name__ for each in MODULES}


def test_the_page_tells_how_many_uses_there_are() -> None:
    assert f"{len(USES)} uses" in PAGE.read_text()
