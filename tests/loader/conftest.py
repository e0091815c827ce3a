"""Routes for loaders of this folder's tests."""

import pytest

from counterpoise.loader.assembly import BalancedSettings


@pytest.fixture
def through_balancer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give loaders alone on their host a balancer, as processes that share a rank have one."""
    monkeypatch.setattr(BalancedSettings, "_is_local", lambda *_: False)
