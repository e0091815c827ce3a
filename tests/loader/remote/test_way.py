"""A loader that needs a balancer says in its log which it goes through, and why."""

import logging

import pytest

from counterpoise.loader import Balance, DataLoader
from tests.loader.remote.served import connect_to


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.message for each in caplog.records if each.message.startswith("remote wing")]


def test_an_address_is_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    address = "tcp://127.0.0.1:5555"
    with caplog.at_level(logging.INFO, "counterpoise"):
        connect_to(address)
    (line,) = lines(caplog)
    assert (
        line == f"remote wing: goes through the balancer at {address}, because balancer= or "
        "COUNTERPOISE_BALANCER was given"
    )


@pytest.mark.usefixtures("through_balancer")
def test_ranks_that_processes_share_are_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    loader = DataLoader([1, 2, 3, 4], 2, True, num_workers=1, balance=Balance("fixed"))
    with caplog.at_level(logging.INFO, "counterpoise"):
        assert len(list(loader)) == 2
    loader.close()
    (line,) = lines(caplog)
    assert "started on this host" in line
    assert "share data-parallel rank 0" in line
