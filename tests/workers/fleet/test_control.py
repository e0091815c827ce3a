"""A fleet follows its balancer's reports, and replaces workers that are lost."""

import logging

import pytest
from msgspec import structs

from counterpoise.workers.fleet.control import HOPELESS, SAY_S, FleetControl, read_look
from tests.tools.doctor.test_status import JOB


class Worker:
    """A worker that ends with a status once it is asked to, or a test sets one."""

    def __init__(self):
        self.status = None

    def poll(self):
        return self.status

    def terminate(self):
        self.status = 0

    kill = terminate


class Fleet(FleetControl):
    """A fleet whose workers are all known."""

    def __init__(self):
        self.started = []
        super().__init__(self.launch, "tcp://127.0.0.1:1", (2, 8), None, "ask who has the places")

    def launch(self):
        self.started.append(Worker())
        return self.started[-1]

    @property
    def here(self):
        return [each for each in self.started if each.status is None]


@pytest.fixture
def fleet():
    return Fleet()


def test_the_fewest_are_started_before_the_balancer_has_answered(fleet):
    fleet.turn(None, now=0.0)
    assert len(fleet.here) == 2


def test_one_that_is_lost_is_replaced_and_all_are_drained_at_the_end(fleet):
    fleet.turn(None, now=0.0)
    fleet.here[0].status = -9
    fleet.turn(None, now=1.0)
    assert (len(fleet.started), len(fleet.here)) == (3, 2)
    fleet.stop()
    assert not fleet.here


@pytest.mark.parametrize("status", HOPELESS)
def test_one_that_could_never_work_ends_the_fleet(fleet, status):
    fleet.turn(None, now=0.0)
    fleet.here[0].status = status
    with pytest.raises(RuntimeError, match=f"ended with status {status}"):
        fleet.turn(None, now=1.0)


@pytest.mark.parametrize(("asked", "found"), [(8, 8), (2, 2), (1, 2), (100, 8)])
def test_it_is_resized_within_its_bounds(fleet, asked, found):
    fleet.resize(5)
    fleet.turn(None, now=0.0)
    fleet.resize(asked)
    fleet.turn(None, now=0.0)
    assert len(fleet.here) == found


def test_workers_that_do_not_come_are_said_with_what_they_wait_for(fleet, caplog):
    report = structs.replace(JOB, trainers=1, workers=0, worker_statuses=())
    assert read_look(report).workers == 0
    with caplog.at_level(logging.INFO):
        fleet._say_at = 0.0
        for second in range(int(2 * SAY_S) + 1):
            fleet.turn(report, now=float(second))
    said = [record.getMessage() for record in caplog.records]
    assert said == 3 * ["2 of 2 workers have not come: ask who has the places"]
