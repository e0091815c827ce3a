"""Trials take one turn a loader: what turns show is held by a clock of its own in test_advice."""

from typing import Any

import pytest

from counterpoise.tools.trial import command
from counterpoise.tools.trial.turns import take_turns


@pytest.fixture(autouse=True)
def _one_turn_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(contenders: Any, size: int, workers: int, _seconds: float, told: Any) -> None:
        take_turns(contenders, size, workers, 0.1, told, least=1, most=1)

    monkeypatch.setattr(command, "take_turns", take)
