"""A fleet follows its balancer's reports; engines are told how many workers to have."""

import logging

import pytest
from msgspec import structs

from counterpoise.workers.fleet.control import SAY_S, FleetControl, look_at
from tests.tools.doctor.test_status import JOB


class Counting:
    """An engine of nothing."""

    hint = "ask who has the places"

    def __init__(self):
        self.workers = 0

    def start(self, workers):
        self.workers = max(self.workers, workers)

    def drain(self, workers):
        self.workers = min(self.workers, workers)

    def stop(self):
        self.workers = 0


@pytest.fixture
def fleet():
    return FleetControl(Counting(), "tcp://127.0.0.1:1", (2, 8), keys=None)


def test_the_fewest_are_started_before_the_balancer_has_answered(fleet):
    fleet.turn(None, now=0.0)
    assert fleet.engine.workers == 2


@pytest.mark.parametrize(("asked", "found"), [(8, 8), (2, 2), (1, 2), (100, 8)])
def test_it_is_resized_within_its_bounds(fleet, asked, found):
    fleet.resize(5)
    fleet.turn(None, now=0.0)
    fleet.resize(asked)
    fleet.turn(None, now=0.0)
    assert fleet.engine.workers == found


def test_workers_that_do_not_come_are_said_with_what_they_wait_for(fleet, caplog):
    report = structs.replace(JOB, trainers=1, workers=0, worker_statuses=())
    assert look_at(report).workers == 0
    with caplog.at_level(logging.INFO):
        fleet._say_at = 0.0
        for second in range(int(2 * SAY_S) + 1):
            fleet.turn(report, now=float(second))
    said = [record.getMessage() for record in caplog.records]
    assert said == 3 * ["2 of 2 workers have not come: ask who has the places"]
