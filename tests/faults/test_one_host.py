"""`make faults KILLS=n`: each process of loaders on one host is killed."""

import pytest

from tests.faults.killing_trainer import PARTIES
from tests.faults.one_host import kill_parties

pytestmark = pytest.mark.slow


# test_kill.py ends trainers in many ways.
FEW = ("trainer", "template", "worker", "plain trainer", "plain worker")


@pytest.mark.parametrize(
    ("kills", "parties"), [(1, FEW), pytest.param(20, PARTIES, marks=pytest.mark.long)]
)
def test_killed_parties_leave_nothing_and_change_no_batch(kills: int, parties: list[str]) -> None:
    found = kill_parties(kills, 3, parties=parties)
    assert found.kills == dict.fromkeys(parties, kills)
    assert found.wrong == []
    assert found.left == []
