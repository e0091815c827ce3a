"""What people who look are told of a played job: complete, bounded, and without a trace."""

from typing import Any

import pytest

from counterpoise.balancer.job.admission import RECENT_S
from counterpoise.balancer.job.job import PlayedJob
from counterpoise.balancer.job.messages import JobOpened, JoinPool, LeavePool
from counterpoise.balancer.job.status import MAX_NOTES, MAX_TEXT, make_status_report
from counterpoise.balancer.parties.messages import BeginRun, JoinJob, TrainerBeat, WantBatches
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.pool.messages import (
    BATCH,
    COSTS,
    DoPart,
    PartMade,
    PartMeasured,
    PoolBeat,
)
from counterpoise.balancer.protocol.job_spec import JobSpec, to_json
from counterpoise.balancer.protocol.status_messages import StatusReport
from counterpoise.balancer.transport.wire import decode, encode
from counterpoise.tools.doctor.job import judge_status
from tests.balancer.job.cluster import START, Cluster, Setting

PLAN = PlanConfig(2, 4, 2, ("tokens",), (None,), "isf", "greedy")
JOB = JobSpec(source={"pattern": "x"}, plan=PLAN, on_error="skip", lease_s=30.0)
LAYOUT = '{"kind": "stacked", "takes_empty": true}'
MOST = (1 << 63) - 1


class Played:
    """A played job of two ranks and the messages of its peers; parts: what workers have to do."""

    def __init__(self) -> None:
        self.job = PlayedJob(to_json(JOB), LAYOUT, 1)
        self.now, self.refused = 0.0, 0
        self.parts: dict[bytes, list[DoPart]] = {}

    def join(self, name: str, transport: str = "pulled over tcp") -> None:
        hello = JoinPool(name, 0, transport, "", b"", 0)
        self.job.receive(name.encode(), hello, (), self.now)

    def open(self, name: str, loads_first: bool = False) -> None:
        number = self.job.opening.number
        told = JobOpened(number, 20, "same", (), loads_first, names=True)
        self.job.receive(name.encode(), told, (), self.now)

    def train(self) -> None:
        for rank in range(2):
            hello = JoinJob((rank,), 0, 1, to_json(JOB), LAYOUT, 0, f"trainer {rank}")
            begin = BeginRun(0, 0, START, "", -1, START, 0, 0, (), ())
            for message in (hello, begin):
                self.job.receive(b"t%d" % rank, message, (), self.now)
        for rank in range(2):
            self.job.receive(b"t%d" % rank, WantBatches(0, ((rank, 2, 0),), 0), (), self.now)
        self.turn()

    def say(self, name: str, message: Any, after_s: float = 0.0) -> None:
        self.now += after_s
        self.job.receive(name.encode(), message, (), self.now)
        self.turn()

    def turn(self) -> None:
        for send in self.job.turn(self.now):
            if isinstance(send.message, DoPart):
                self.parts.setdefault(send.peer, []).append(send.message)

    def work(self, name: str, seconds: float = 1.0) -> None:
        """Do one part: samples cost 5, and have 6 bytes."""
        part = self.parts[name.encode()].pop(0)
        samples, took_us = len(part.task) - 3, round(1e6 * seconds)
        if part.form == COSTS:
            self.say(name, PartMeasured(part.number, ((5,),) * samples, (), took_us, False, ()))
            return
        nbytes = 6 * samples
        made = PartMade(
            part.number, part.number, nbytes, (nbytes,), ("k",) * samples, (), (), (), -1, nbytes,
            took_us,
        )  # fmt: skip
        self.say(name, made, seconds)

    def look(self, after_s: float = 0.0) -> StatusReport:
        self.now += after_s
        report = make_status_report(self.job, self.refused, self.now)
        assert decode(encode(report), 0) == report
        return report

    def worker(self, name: str) -> Any:
        return next(each for each in self.look().worker_statuses if each.name == name)


@pytest.fixture
def played() -> Played:
    """Two workers and two ranks, none of which has done anything."""
    played = Played()
    for name in ("a", "b"):
        played.join(name)
        played.open(name)
    played.train()
    return played


def test_nothing_is_known_at_first() -> None:
    seen = Played().look()
    assert (seen.workers, seen.trainers, seen.epoch) == (0, 0, -1)
    assert (seen.waiting, seen.front) == ("a worker to connect", -1)


def test_a_worker_opens_its_source_is_ready_and_leaves() -> None:
    played = Played()
    played.join("a")
    assert played.worker("a").state == "opening"
    assert played.look().waiting == "a worker to open the data"
    played.open("a")
    assert played.worker("a").state == "ready"
    assert played.look().waiting == "a trainer"
    played.say("a", PoolBeat(0, -1, True, ()))
    assert played.worker("a").state == "leaving"
    played.job.receive(b"a", LeavePool(), (), played.now)
    assert played.look().workers == 0


def test_looking_changes_nothing(played: Played) -> None:
    before = played.look()
    assert played.job.turn(played.now) == []
    assert played.look() == before


def test_what_workers_have_done_is_counted_with_its_time(played: Played) -> None:
    probed = dict.fromkeys("ab", 0)
    for name in "ab" * 20:
        if played.parts.get(name.encode()):
            part = played.parts[name.encode()][0]
            probed[name] += (len(part.task) - 3) * (part.form == COSTS)
            played.work(name)
    seen = [played.worker(name) for name in "ab"]
    assert {each.name: each.probed for each in seen} == probed
    assert all(each.nbytes == 6 * each.decoded > 0 for each in seen)
    assert all(each.recent_decoded == each.decoded for each in seen)
    assert seen[0].recent_ms == round(1000 * played.now)
    later = next(e for e in played.look(10 * RECENT_S).worker_statuses if e.name == "a")
    assert later.decoded == seen[0].decoded
    assert later.recent_decoded / later.recent_ms < seen[0].recent_decoded / seen[0].recent_ms / 5


def test_loading_to_measure_counts_as_decoding_where_it_is_kept(played: Played) -> None:
    part = played.parts[b"a"].pop(0)
    assert part.form == COSTS
    costs = ((5,),) * (len(part.task) - 3)
    played.say("a", PartMeasured(part.number, costs, (), 2_000_000, False, (0,)))
    assert played.worker("a").recent_decode_ms == 2000


def test_a_heartbeat_tells_time_at_work(played: Played) -> None:
    played.say("a", PoolBeat(0, -1, False, (), 5000, 6000))  # of the time before it joined
    played.say("a", PoolBeat(0, -1, False, (), 5700, 6300), after_s=2.0)
    seen = played.worker("a")
    assert (seen.recent_busy_ms, seen.recent_cpu_ms, seen.last_message_ms) == (700, 300, 0)


def test_workers_that_are_not_ready_come_first_then_silent_ones(played: Played) -> None:
    played.say("b", PoolBeat(0, -1, False, ()), after_s=4.0)
    played.join("c")
    notes = played.look().worker_statuses
    assert [(each.name, each.last_message_ms) for each in notes] == [
        ("c", 0), ("a", 4000), ("b", 0)
    ]  # fmt: skip


def test_a_worker_that_is_at_one_sample_for_half_of_its_lease_is_late(played: Played) -> None:
    number = played.parts[b"a"][0].number
    beat = PoolBeat(number, 3, False, ())
    for _ in range(4):
        played.say("a", beat, after_s=4.0)
        assert not played.worker("a").unresponsive
    played.say("a", beat, after_s=4.0)
    assert played.worker("a").unresponsive
    assert judged(played.look())["late workers"].found == "a"


def judged(report: StatusReport) -> dict[str, Any]:
    return {each.name: each for each in judge_status("tcp://h:1", report, 0.001)}


def test_what_a_rank_needs_is_said_at_every_stage(played: Played) -> None:
    first = played.look(after_s=3.0).trainer_statuses[0]
    assert first.missing.startswith("costs of the next window of ")
    assert (first.oldest_request_ms, first.state, first.step) == (3000, "running", -1)

    def rest(form: str) -> list[str]:
        return [n for n in "ab" if [p for p in played.parts[n.encode()] if p.form == form]]

    while (measuring := rest(COSTS)) and not rest(BATCH):
        played.work(measuring[0])
    seen = played.look()
    needs = {each.missing for each in seen.trainer_statuses}
    assert all(each.startswith("microbatch 0 of step 0 from worker ") for each in needs), needs
    assert {(each.step, each.microbatch) for each in seen.trainer_statuses} == {(0, 0)}
    assert (seen.front, seen.waiting) == (0, seen.trainer_statuses[0].missing)
    while busy := [name for name in "ab" if played.parts[name.encode()]]:
        played.work(busy[0])
    needs = {each.missing for each in played.look().trainer_statuses}
    assert needs == {"what it was sent, which must arrive"}
    for rank in range(2):
        played.job.receive(b"t%d" % rank, WantBatches(0, ((rank, 2, 2),), 0), (), played.now)
    assert {each.oldest_request_ms for each in played.look().trainer_statuses} == {-1}


def test_no_peers_name_is_told_under_which_it_could_be_replaced() -> None:
    played = Played()
    played.join("job|vm/7.c0ffee")
    played.open("job|vm/7.c0ffee")
    played.train()
    while (parts := played.parts[b"job|vm/7.c0ffee"])[0].form == COSTS:
        played.work("job|vm/7.c0ffee")
    assert parts[0].form == BATCH
    missing = {each.missing for each in played.look().trainer_statuses}
    assert "microbatch 0 of step 0 from worker vm/7" in missing
    assert not any("c0ffee" in each for each in missing)


def test_a_rank_waits_if_it_has_asked_lately(played: Played) -> None:
    assert not any(each.is_waiting for each in played.look().trainer_statuses)
    played.job.receive(b"t1", TrainerBeat(1, True), (), played.now)
    waiting = played.look().trainer_statuses[0]
    assert (waiting.ranks, waiting.is_waiting) == ("1", True)
    assert "run counterpoise analyze" in judged(played.look())["ranks that wait"].advice
    assert not played.look(after_s=3.0).trainer_statuses[0].is_waiting


def test_a_rank_that_has_had_a_microbatch_since_it_asked_waits_no_more(played: Played) -> None:
    played.job.receive(b"t1", TrainerBeat(1, True), (), played.now)
    played.now += 0.5
    played.job.receive(b"t1", WantBatches(0, ((1, 3, 1),), 0), (), played.now)
    assert not any(each.is_waiting for each in played.look().trainer_statuses)


def test_costs_that_only_loading_shows_are_told_with_what_helps() -> None:
    played = Played()
    played.join("a")
    played.open("a", loads_first=True)
    played.train()
    played.job.receive(b"t1", TrainerBeat(1, True), (), played.now)
    assert "give cost= a table" in judged(played.look())["ranks that wait"].advice


def test_a_request_is_as_old_as_the_last_microbatch(played: Played) -> None:
    for after_s, have in ((4.0, 1), (2.0, 1)):
        played.now += after_s
        played.job.receive(b"t0", WantBatches(0, ((0, 3, have),), 900), (), played.now)
    seen = {each.ranks: each for each in played.look().trainer_statuses}
    assert (seen["0"].oldest_request_ms, seen["0"].waited_ms) == (2000, 900)
    assert seen["1"].oldest_request_ms == 6000


def test_a_trainer_that_has_not_begun_is_named() -> None:
    played = Played()
    played.join("a")
    played.open("a")
    hello = JoinJob((0, 1), 0, 1, to_json(JOB), LAYOUT, 0, "the trainer")
    played.job.receive(b"t", hello, (), 0.0)
    played.turn()
    seen = played.look()
    assert seen.waiting == "the trainer, to begin the run"
    assert (seen.trainer_statuses[0].ranks, seen.trainer_statuses[0].state) == ("0-1", "joined")


def test_answers_that_nobody_waits_for_are_not_counted(played: Played) -> None:
    part = played.parts[b"a"][0]
    played.work("a")
    counted = played.worker("a").probed
    played.say("a", PartMeasured(part.number, ((5,),), (), 1, False, ()))
    assert played.worker("a").probed == counted


def test_workers_that_are_lost_or_turned_away_and_what_was_refused_are_told(played: Played) -> None:
    played.now = 9.0
    played.job.unreachable(b"a", 4.0)
    played.refused = 3
    old = JoinPool("c", 0, "", "", b"", 0, version="0.0.0")
    played.job.receive(b"c", old, (), 9.0)
    seen = played.look()
    assert (seen.lost, seen.lost_ms) == (1, 5000)
    assert seen.last_lost == ("a (its connection has ended)",)
    assert (seen.refused, seen.turned_away) == (3, 1)
    assert seen.rejected_workers[0].startswith("c: this peer has counterpoise 0.0.0")


def test_the_report_is_bounded_whatever_the_peers_say(played: Played) -> None:
    for number in range(2 * MAX_NOTES):
        played.join(f"{number}-" + "n" * 5000, transport="s" * 5000)
    seen = played.look()
    assert (seen.workers, len(seen.worker_statuses)) == (2 + 2 * MAX_NOTES, MAX_NOTES)
    assert max(len(each.name) for each in seen.worker_statuses) == MAX_TEXT
    assert len(encode(seen)) < 1 << 19


# --- a whole job, on its simulated network


def looked_at(seed: int, faults: bool, **changes: Any) -> tuple[Cluster, list[StatusReport]]:
    """Run a job that is looked at all the time."""
    setting, reports = Setting(seed, faults), list[StatusReport]()
    vars(setting).update(changes)
    cluster = Cluster(setting)

    def look() -> None:
        cluster.after(0.1, look)
        for report in cluster.jobs.reports().values():
            reports.append(report)
            assert decode(encode(report), 0) == report
            judge_status("tcp://h:1", report, 0.001)

    look()
    cluster.run()
    look()
    return cluster, reports


@pytest.mark.parametrize("seed", range(12))
def test_a_report_can_be_made_in_any_state(seed: int) -> None:
    looked_at(seed, faults=True)


def test_a_job_that_runs_well_decodes_each_sample_once() -> None:
    cluster, reports = looked_at(1, False, broken=frozenset(), workers=1)
    last, setting = reports[-1], cluster.setting
    assert sum(each.decoded for each in last.worker_statuses) == len(setting.lengths)
    assert sum(each.nbytes for each in last.worker_statuses) > 0
    assert (last.holes, last.trouble, last.epoch) == (0, "", 0)
    assert {each.state for each in last.trainer_statuses} == {"finished"}
    assert max(each.parts for each in reports) > 0
    fronts = [each.front for each in reports if each.front >= 0]
    assert fronts == sorted(fronts)


def test_samples_that_cannot_be_used_are_named() -> None:
    _, reports = looked_at(1, False, broken=frozenset({2, 5, 7}), on_error="skip")
    last = reports[-1]
    assert last.holes == 3
    assert {hole.key for hole in last.last_holes} == {"2", "5", "7"}
    assert {hole.reason for hole in last.last_holes} == {"it is torn"}


def test_what_ends_the_run_is_its_trouble() -> None:
    _, reports = looked_at(1, False, broken=frozenset({2}), on_error="raise")
    assert "it is torn" in reports[-1].trouble
    assert judged(reports[-1])["run"].level == "bad"


@pytest.mark.parametrize("buffer_bytes", [1, 1 << 30])
def test_a_budget_that_is_full_is_told(buffer_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Setting, "job", property(lambda self: JobSpec(self.plan, buffer_bytes=buffer_bytes))
    )
    _, reports = looked_at(22, False, on_error="raise", broken=frozenset())
    assert any(each.is_full for each in reports) == (buffer_bytes == 1)
