"""What top shows: of reports that are made up, at the sizes of terminals."""

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from counterpoise.balancer.protocol.parts import Hole
from counterpoise.tools.top import command
from counterpoise.tools.top.view import History, Sight, as_json, lead, screen
from tests.tools.doctor.test_status import JOB, WAITS, crew

SIZES = [(80, 24), (160, 50)]
BUSY = replace(
    JOB, workers=400, trainers=40, worker_statuses=crew(256),
    trainer_statuses=tuple(replace(WAITS, ranks=f"{n}", step=12 + n) for n in range(40)), lost=2,
    lost_ms=5000, last_lost=("node-9/1",), holes=3,
    last_holes=(Hole(7, "a\x1b[31mb", "OSError: cannot read", "shard-1"),),
    rejected_workers=("other data " * 40,),
)  # fmt: skip


def history(*reports, every_s=1.0):
    made = History()
    for number, report in enumerate(reports):
        made.add(every_s * number, report)
    return made


def shown(made, width, height):
    out = io.StringIO()
    made = made if isinstance(made, Sight) else Sight({"job-1": made})
    console = Console(file=out, width=width, height=height, force_terminal=False)
    console.print(screen("tcp://h:5555", made, "12:00:00", width, height))
    return out.getvalue().splitlines()


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("report", [JOB, BUSY])
def test_a_screen_fits_into_its_terminal(width, height, report):
    lines = shown(history(report, report), width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_screen_names_who_waits_for_whom_and_what_went_wrong(width, height):
    text = "\n".join(shown(history(BUSY, BUSY), width, height))
    assert "epoch 0, step 12" in text
    assert "waits for decoded samples" in text
    assert "3 of 8 samples" in text
    assert "node-0/1" in text
    assert "more" in text  # of 400 workers
    assert "lost worker node-9/1 5.0 s ago (2 in all)" in text
    assert "OSError: cannot read" in text
    assert "\x1b" not in text  # what came from a peer controls no terminal


def test_before_a_run_has_a_planned_step_it_has_no_number():
    text = "\n".join(shown(history(replace(JOB, front=-1), replace(JOB, front=-1)), 160, 50))
    assert "epoch 0, before its first planned step" in text
    assert "step -1" not in text


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_of_several_jobs_the_one_that_waits_most_is_shown(width, height):
    def report(waited_ms, host):
        trainer = replace(WAITS, is_waiting=False, waited_ms=waited_ms)
        workers = tuple(replace(each, name=f"{host}-{each.name}") for each in crew(4))
        return replace(BUSY, trainer_statuses=(trainer,), worker_statuses=workers)

    sight = Sight()
    for second in range(3):
        jobs = {f"sweep-{n}": report(40 * n * second, f"h{n}") for n in range(20)}
        sight.add(float(second), {**jobs, "gone": "no answer in time"})
    lines = shown(sight, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "job sweep-19" in text
    assert "h19-node-0" in text
    assert "h1-node-0" not in text
    sight.add(4.0, "no answer in time")
    assert "no answer in time" in shown(sight, width, height)[0]
    sight.add(5.0, {})
    assert "no job" in shown(sight, width, height)[1]


def test_waits_are_shares_of_the_last_seconds():
    def report(waited_ms, **changes):
        trainer = replace(WAITS, is_waiting=False, waited_ms=waited_ms)
        return replace(JOB, trainer_statuses=(replace(trainer, **changes),))

    assert history(report(500)).waits() == {}
    assert history(report(500), report(700), report(1500)).waits() == {"0-3": 0.5}
    going_on = report(500, is_waiting=True, oldest_request_ms=1500)
    assert history(report(500), report(500), going_on).waits() == {"0-3": 0.75}
    long_ago = [report(0)] * 3 + [report(0), report(2000)]
    assert history(*long_ago, every_s=5.0).waits() == {"0-3": 0.2}  # of ten


def test_a_lead_is_counted_from_the_slowest_rank():
    assert lead(replace(WAITS, step=15), JOB) == 3
    assert lead(replace(WAITS, step=-1), JOB) is None


def test_one_object_has_waits_leads_and_rates():
    found = as_json(history(JOB, BUSY))
    assert found["trainer_statuses"][2]["lead"] == 2
    assert found["worker_statuses"][0]["decoded_per_s"] == 10
    assert found["error"] == ""
    assert as_json(history("no answer in time")) == {"error": "no answer in time"}


def test_a_screen_is_written_over_and_ends_at_an_interrupt():
    out, looks = io.StringIO(), []
    console = Console(file=out, width=80, height=24, force_terminal=True)

    def look():
        looks.append(1)
        if len(looks) == 3:
            raise KeyboardInterrupt  # as the terminal's signal does

    sight = Sight({"job-1": history(BUSY, BUSY)})
    command._show("tcp://h:1", sight, console, 0.01, look)
    written = out.getvalue()
    assert "\x1b[2J" not in written.partition("\x1b[?1049h")[2][10:]  # erased nowhere: no flicker
    assert written.rstrip().endswith("\x1b[?25h") or "\x1b[?1049l" in written  # all put back
