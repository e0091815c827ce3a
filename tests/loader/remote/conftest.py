"""Trainers of this process and its workers draw from the global generators in turns."""

from typing import Any

import pytest

from counterpoise.loader.remote import batch_reader
from counterpoise.workers.planned.reader import collate_seeded
from tests.loader.remote.balancer_here import DRAWS


def _alone(*given: Any) -> Any:
    with DRAWS:
        return collate_seeded(*given)


@pytest.fixture(autouse=True)
def _global_generators_of_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_reader, "collate_seeded", _alone)
