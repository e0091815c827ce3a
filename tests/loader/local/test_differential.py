"""The local loop delivers what a balancer delivers, whatever the settings."""

from dataclasses import replace

import pytest

from counterpoise import Ranks
from counterpoise.loader import assembly
from tests.loader.local.both_ways import TOO_SMALL, Run, by_balancer, deliver, difference
from tests.loader.local.settings import Setting, draw, draw_processes, stacked

SETTINGS, MANY = 60, 2000
IN_PROCESSES, MANY_IN_PROCESSES = 10, 100


def expected_of(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> tuple[Run, Run]:
    with monkeypatch.context() as patch:
        patch.setattr(assembly, "choose_connection", by_balancer)
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


def test_what_only_fills_a_step_up_has_no_labels_where_the_trainer_collates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A microbatch all of whose samples are holes has a batch of another, which weighs nothing."""
    setting = replace(
        draw(0), count=41, costs="kept", is_named=True, epochs=1, stop=18,
        broken=frozenset({1, 36, 5, 10, 15, 19, 25, 30}),
        unreadable=frozenset({32, 2, 7, 12, 17, 20, 27}),
        balance={
            "seed": 5, "budgets": {"tiles": 2, "tokens": 87}, "samples_per_step": 19,
            "accumulate": "auto", "label_tokens": "batch", "all_or_none": "tiles",
        },
        loader={"shuffle": True, "ranks": Ranks(virtual=3), "on_error": "skip",
                "collate_fn": stacked},
    )  # fmt: skip
    run, _ = deliver(setting)
    assert any(not info["keys"] for info, _, _ in run.microbatches)
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
