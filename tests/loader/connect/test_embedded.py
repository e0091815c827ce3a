"""Why a run with processes of its own cannot go on."""

from counterpoise.loader.connect.embedded import PoolReader
from counterpoise.workers.processes.pool_job import Report

FAILED = Report("failed", worker=1, message="no such file: a.tar")
ENDED = Report("exited", worker=1, code=1)
WHY = "worker 1 ended with status 1 and is not started again: no such file: a.tar"


def test_a_worker_that_ended_has_its_reason_in_one_poll_or_in_two() -> None:
    assert PoolReader().failure([FAILED, ENDED]) == WHY
    reader = PoolReader()
    assert reader.failure([FAILED]) == ""
    assert reader.failure([]) == ""
    assert reader.failure([ENDED]) == WHY


def test_the_reason_of_one_worker_is_not_anothers() -> None:
    reader = PoolReader()
    reader.failure([FAILED])
    other = Report("exited", worker=0, signal=9)
    assert reader.failure([other]) == "worker 0 ended with signal 9 and is not started again"


def test_a_worker_that_is_started_again_ends_nothing() -> None:
    assert PoolReader().failure([FAILED, Report("exited", worker=1, code=1, restarted=True)]) == ""
