"""The doctor's words for a running job, from overviews that are made up, and one that is real."""

import io
import json
import time

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from rich.console import Console

from counterpoise import Ranks
from counterpoise.balancer.protocol.parts import Hole
from counterpoise.balancer.protocol.status_messages import StatusReport, TrainerStatus, WorkerStatus
from counterpoise.loader import Balance, DataLoader
from counterpoise.tools.doctor.command import _table, command
from counterpoise.tools.doctor.figures import BAD, GOOD, WARN
from counterpoise.tools.doctor.job import judge_status
from tests.loader import balanced_data

LIMIT_S = 120.0
WORKER = WorkerStatus(
    name="node-1/100", state="ready", unresponsive=False, last_message_ms=400, parts=2, probed=500,
    decoded=400, failed=0, nbytes=4 << 20, recent_ms=30_000, recent_decoded=300,
    recent_bytes=3 << 20, recent_decode_ms=20_000, recent_busy_ms=21_000, recent_cpu_ms=12_000,
    transport="inline: the loader was given a balancer's address",
)  # fmt: skip
WAITS = TrainerStatus(
    ranks="0-3", state="running", step=12, microbatch=1, oldest_request_ms=4200, is_waiting=True,
    missing="3 of 8 samples to be decoded", waited_ms=0,
)  # fmt: skip
FINE = replace(WAITS, oldest_request_ms=-1, step=-1, microbatch=-1, is_waiting=False, missing="")


def crew(count, **changes):
    return tuple(replace(WORKER, name=f"node-{n}/1", **changes) for n in range(count))


JOB = StatusReport(
    workers=4, trainers=1, waiting="decoded samples", epoch=0, front=12, budget_bytes=1 << 30,
    parts=8, worker_statuses=crew(4), trainer_statuses=(FINE,),
)  # fmt: skip


def judged(overview, answer_s=0.001):
    found = judge_status("tcp://h:1", overview, answer_s)
    names = [one.name for one in found]
    assert len(set(names)) == len(names)
    assert all(bool(one.advice) == (one.level != GOOD) for one in found)
    return {one.name: one for one in found}


def test_a_job_that_runs_well_is_fine():
    found = judged(JOB)
    assert {one.level for one in found.values()} == {GOOD}
    assert found["workers"].found == "4 ready, at work 70% of the time"
    assert found["run"].found == "epoch 0, step 12, trainer processes: 1"


WITH_SLOW = (*crew(3), replace(WORKER, name="slow", recent_decoded=60))
IDLE = (*crew(3), replace(WORKER, name="idle", recent_decoded=9, recent_decode_ms=600))
SILENT = (*crew(3), replace(WORKER, name="gone", last_message_ms=12_000))


@pytest.mark.parametrize(
    ("changes", "name", "level", "words"),
    [
        ({"worker_statuses": (), "workers": 0}, "workers", BAD, "0 ready"),
        ({"worker_statuses": crew(4, state="opening")}, "workers", GOOD, "0 ready, 4 not yet"),
        ({"worker_statuses": crew(4, state="leaving")}, "workers", GOOD, "4 ready, at work"),
        ({"worker_statuses": WITH_SLOW}, "slow workers", WARN, "slow (20% of the median speed)"),
        ({"worker_statuses": SILENT}, "silent workers", BAD, "gone (12 s)"),
        ({"worker_statuses": crew(4, unresponsive=True)}, "late workers", WARN, "and 1 more"),
        ({"rejected_workers": ("w: other data",)}, "turned away", BAD, "w: other data"),
        ({"trouble": "sample 'k': cut"}, "run", BAD, "sample 'k': cut"),
        ({"epoch": -1, "waiting": "ranks to begin"}, "run", GOOD, "waiting for ranks to begin"),
        ({"trainer_statuses": (WAITS,)}, "ranks that wait", WARN,
         "ranks 0-3 for 4.2 s (step 12, microbatch 1): 3 of 8 samples to be decoded"),
        ({"is_full": True}, "payloads", GOOD, "full: the trainer is the bottleneck"),
        ({"lost": 2, "lost_ms": 5000, "last_lost": ("a", "b")}, "lost workers", WARN,
         "2, the last 5.0 s ago: b; a"),
        ({"lost": 2, "lost_ms": 10**7}, "lost workers", GOOD, "2, the last 166 min ago"),
        ({"refused": 7}, "refused", WARN, "7 messages or peers"),
        ({"holes": 5, "last_holes": (Hole(1, "k", "cut", ""),)}, "dead letters", WARN,
         "5 in this run; 'k': cut"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_words(changes, name, level, words):
    found = judged(replace(JOB, **changes))[name]
    assert (found.level, words in found.found) == (level, True), found


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"worker_statuses": crew(4, recent_busy_ms=29_000)}, "busy all the time: add some"),
        ({"worker_statuses": crew(4, recent_busy_ms=1900)}, "disk or the network may be slow"),
        ({"is_full": True}, "raise buffer_bytes"),
        ({"worker_statuses": (), "workers": 0}, "start some"),
        ({"trainer_statuses": (replace(WAITS, missing="its step to be planned"),)},
         "run counterpoise analyze"),
        ({"trainer_statuses": (replace(WAITS, missing="its step to be planned"),),
          "loads_to_measure": True}, "give cost= a table"),
        *[({"trainer_statuses": (replace(WAITS, missing=missing),)}, advice)
          for missing, advice in (
              ("a worker to open the data; worker a was refused", "no worker has the data open"),
              ("the label tokens of step 3 from ranks 1", "what those processes wait for"),
              ("trainer 1, which shares rank 0", "what those processes wait for"),
              ("ranks 1 (trainer 1): not here", "what those processes wait for"),
              ("the plan of the next window", "give the balancer a free core"),
              ("microbatch 0 of step 3 from worker a", "the network may be slow"),
          )],
        ({"trainer_statuses": (replace(WAITS, missing="costs of the next window of 24 samples"),)},
         "run counterpoise analyze"),
    ],
)  # fmt: skip
def test_who_waits_is_told_what_would_help(changes, advice):
    given = {"trainer_statuses": (WAITS,), **changes}
    assert advice in judged(replace(JOB, **given))["ranks that wait"].advice


def test_a_worker_that_had_little_to_do_is_not_slow():
    assert "slow workers" not in judged(replace(JOB, worker_statuses=IDLE))


def test_a_slow_answer_is_judged():
    assert judged(JOB, answer_s=0.5)["balancer"].level == WARN


def test_the_table_hides_what_a_peer_would_do_to_the_terminal():
    evil = replace(WORKER, name="\x1b[31m[red]evil[/]\n", last_message_ms=12_000)
    console = Console(width=80, color_system=None, record=True, file=io.StringIO())
    console.print(_table(judge_status("tcp://h:1", replace(JOB, worker_statuses=(evil,)), 0.001)))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert r"\x1b[31m[red]evil[/]" in text


@pytest.mark.usefixtures("through_balancer")
def test_workers_of_a_real_job_have_rates_above_0():
    loader = DataLoader(
        balanced_data.Augmented(400),
        balance=Balance(grouping="isf", samples_per_step=8, accumulate="auto"),
        ranks=Ranks(virtual=2),
        shuffle=True,
        collate_fn=balanced_data.as_list,
        num_workers=2,
    )
    iterator = iter(loader)
    address = loader._balanced.open().endpoint
    notes, deadline = [], time.monotonic() + LIMIT_S
    while len(notes) < 2 and time.monotonic() < deadline:  # a worker may still be starting
        next(iterator)
        result = CliRunner().invoke(command, [address, "--json"], standalone_mode=False)
        assert result.exception is None, result.exception
        report = json.loads(result.stdout.splitlines()[-1])
        notes = report["job"]["worker_statuses"]
    del iterator
    loader.close()
    assert result.return_value == 0, report["findings"]
    assert len(notes) == 2
    assert sum(each["decoded_per_s"] for each in notes) > 0
    assert sum(each["bytes_per_s"] for each in notes) > 0
