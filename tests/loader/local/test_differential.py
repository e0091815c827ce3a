"""The local loop delivers what a coordinator delivers, whatever the settings.

python -m pytest -m long tests/loader/local/test_differential.py runs 2,000 settings.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from counterpoise.loader.assembly import BalancedSettings
from tests.loader.local.both_ways import by_coordinator, deliver
from tests.loader.local.settings import draw

SETTINGS, MANY, WITH_WORKERS = 60, 2000, 100


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return what delivers by a coordinator."""

    def delivered(setting: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(BalancedSettings, "_connection", by_coordinator)
            return deliver(setting)

    return delivered


def check(number: int, coordinator: Any, workers: int = 0) -> None:
    setting = draw(number)
    expected, found = coordinator(setting), deliver(setting, workers)
    for place, (ours, theirs) in enumerate(zip(found, expected, strict=False)):
        assert ours == theirs, f"{setting}, at {place}"
    assert len(found) == len(expected), f"{setting}"


@pytest.mark.parametrize("number", range(SETTINGS))
def test_a_setting_delivers_the_same_both_ways(number: int, coordinator: Any) -> None:
    check(number, coordinator)
