"""Every loader here goes to a balancer that plays all ranks."""

import pytest


@pytest.fixture(autouse=True)
def _new_wing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERPOISE_WING", "pools")
