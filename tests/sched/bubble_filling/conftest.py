"""Every schedule that a test of this folder fills passes the validator."""

from collections.abc import Iterator

import pytest

from counterpoise.sched.bubble_filling.search import _Search
from tests.sched.bubble_filling.validate import check_filled


@pytest.fixture(scope="session", autouse=True)
def filled_schedules_are_right() -> Iterator[None]:
    improve = _Search.improve
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Search, "improve", lambda self, best: check_filled(improve(self, best)))
        yield
