"""Every loader here goes to a balancer that plays all ranks."""

from typing import Any

import pytest

from counterpoise.loader.remote import batch_reader
from counterpoise.workers.planned.reader import collate_seeded
from tests.loader.remote.balancer_here import DRAWS


def _alone(*given: Any) -> Any:
    with DRAWS:
        return collate_seeded(*given)


@pytest.fixture(autouse=True)
def _new_wing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERPOISE_WING", "pools")
    monkeypatch.setattr(batch_reader, "collate_seeded", _alone)
