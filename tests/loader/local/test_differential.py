"""The local loop delivers what a balancer delivers, whatever the settings."""

import pytest

from counterpoise.loader import assembly
from tests.loader.local.both_ways import TOO_SMALL, Run, by_balancer, deliver, difference
from tests.loader.local.settings import Setting, draw, draw_processes

SETTINGS, MANY = 60, 2000
IN_PROCESSES, MANY_IN_PROCESSES = 10, 100


def expected_of(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> tuple[Run, Run]:
    with monkeypatch.context() as patch:
        patch.setattr(assembly, "connection_of", by_balancer)
        return deliver(setting)


def check(setting: Setting, found: tuple[Run, Run], expected: tuple[Run, Run]) -> None:
    for name, ours, theirs in zip(("first", "resumed"), found, expected, strict=True):
        assert not (what := difference(ours, theirs)), f"{name}: {what}; {setting}"


@pytest.mark.parametrize(
    "number",
    [*range(SETTINGS), *[pytest.param(n, marks=pytest.mark.long) for n in range(SETTINGS, MANY)]],
)
def test_a_setting_delivers_the_same_both_ways(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = draw(number)
    check(setting, deliver(setting), expected_of(setting, monkeypatch))


@pytest.mark.parametrize(
    "number",
    [
        *range(IN_PROCESSES),
        *[
            pytest.param(number, marks=pytest.mark.long)
            for number in range(IN_PROCESSES, MANY_IN_PROCESSES)
        ],
    ],
)
def test_a_setting_delivers_the_same_by_any_processes(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = draw(MANY + number)
    found = deliver(setting, **draw_processes(number))
    check(setting, found, expected_of(setting, monkeypatch))
    here = deliver(setting)
    assert TOO_SMALL in f"{found}" or found == here
