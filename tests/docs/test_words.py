"""Guides are short and easy to read, and so is all that one reads to adopt the product."""

import doctest

import pytest

pytest.importorskip("pyphen")  # of the extra `docs`, which environments of other tests do not have

from tests.docs import words


@pytest.mark.parametrize("guide", words.guides(), ids=lambda guide: guide.page.stem)
def test_a_guide_is_within_the_limits(guide: words.Measure) -> None:
    assert guide.words <= words.MOST_WORDS
    assert guide.ease >= words.LEAST_EASE


def test_what_one_reads_to_adopt_is_short() -> None:
    assert words.to_adopt() <= words.MOST_TO_ADOPT


def test_the_examples_are_true() -> None:
    assert doctest.testmod(words).failed == 0


def test_code_and_markup_are_no_words() -> None:
    page = (
        "# A page\n\nIt [*is*](a.md) short.\n\n```python\nx = 1\n```\n\n| a | b c |\n| -- | -- |\n"
    )
    assert words.measured(page)[0] == 8


def test_long_words_and_sentences_are_harder() -> None:
    easy = words.measured("The cat sat. The dog ran.\n")[1]
    hard = words.measured("Heterogeneous accelerators necessitate considerable orchestration.\n")[1]
    assert hard < 0 < 100 < easy
