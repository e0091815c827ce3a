"""`bench schedules`: every schedule does the same work, and the report has the promised shape."""

import json

import pytest
from click.testing import CliRunner

from benchmarks.schedules import command, shared_costs
from counterpoise.sched import schedule, schedules, simulate

NAMES = [found.name for found in schedules()]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("output", [0, 100])
def test_every_schedule_does_the_same_work(name: str, output: int) -> None:
    program = schedule(name, ranks=4, microbatches=8)
    work = sum(simulate(program, shared_costs(program, output)).work_ns)
    assert work == 8 * 3 * 1_200_000 * (4 + output // 100)


def test_the_report_has_the_promised_keys() -> None:
    arguments = ["--ranks", "2", "--microbatches", "4", "--json"]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    report = json.loads(result.stdout.splitlines()[-1])
    assert set(NAMES) <= set(report["schedules"])
    for row in report["schedules"].values():
        assert set(row) == {"makespan", "bubble", "peak"}
    assert report["speed"]["interleaved_16x12x256"]["passes"] == 98304
