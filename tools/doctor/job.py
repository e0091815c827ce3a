"""Asks a running job's balancer for its status, as a peer that takes no part, and judges it."""

import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...balancer.protocol.status_messages import (
    GetStatus,
    StatusReport,
    TrainerStatus,
    WorkerStatus,
)
from ...balancer.transport.asking import observe
from ...balancer.transport.keys import peer_keys
from .figures import BAD, GIB, Finding, busy_share, decode_rate, judge, seconds

# A balancer that takes longer than this to answer is busy with something else.
SLOW_ANSWER_S = 0.1
# Workers send a heartbeat every second.
SILENT_MS = 3_000
# A worker below this share of the median speed is slow, if it decoded enough samples recently.
SLOW_SHARE, ENOUGH_SAMPLES = 0.5, 8
# Losses longer ago than this are listed without a warning.
RECENT_MS = 600_000
# Workers that are at work for this share of the time are the bottleneck.
BUSY_SHARE = 0.8
NAMED = 3


def judge_status(address: str, status: StatusReport, answer_s: float) -> list[Finding]:
    """Return the findings about a balancer's status report, which came after some seconds."""
    workers = status.worker_statuses
    silent = [worker for worker in workers if worker.last_message_ms > SILENT_MS]
    waiting = [trainer for trainer in status.trainer_statuses if trainer.is_waiting]
    hidden = status.turned_away - len(status.rejected_workers)
    lost = f"{status.lost}, the last {seconds(status.lost_ms)} ago: {_join(status.last_lost[::-1])}"
    holes = [f"{hole.key!r}: {hole.reason}" for hole in status.last_holes]
    # Name, what is found (nothing: no finding), what to do where it is bad, and where it may be.
    rows: tuple[tuple[str, str, str | bool, str | bool], ...] = (
        ("balancer", f"{address} answers in {1000 * answer_s:.1f} ms", False,
         answer_s > SLOW_ANSWER_S and "it is busy or far away: expect batches to be late, too"),
        ("workers", _count_workers(status),
         not status.workers and f"start some: counterpoise worker {address} --root FOLDER", False),
        ("silent workers", _join([f"{w.name} ({seconds(w.last_message_ms)})" for w in silent]),
         "each is stopped, hung or cut off: check it; its work goes to others", False),
        ("late workers", _join([worker.name for worker in workers if worker.unresponsive]), False,
         "each is at one sample for long, and given up after lease_s: check what it is doing"),
        ("slow workers", _join([f"{worker.name} ({share:.0%} of the median speed)"
                                for worker, share in slow_workers(workers)]), False,
         "check its machine: other load, a slow disk, too few processors"),
        ("turned away", _join(status.rejected_workers) + f", and {hidden} before" * (hidden > 0),
         "fix the reason given for each", False),
        ("run", _describe_run(status),
         status.trouble and "the run has ended: fix the reason, then start it again", False),
        ("ranks that wait", _join([waits_text(trainer) for trainer in waiting]), False,
         _explain_waits(status, waiting)),
        ("payloads", _describe_payloads(status, bool(waiting)), False, False),
        ("lost workers", lost if status.lost else "", False, status.lost_ms < RECENT_MS and
         "see their output, and dmesg for processes killed for lack of memory; where a sample "
         "took longer than lease_s, raise it"),
        ("refused", f"{status.refused} messages or peers" if status.refused else "", False,
         "see the balancer's log for the reason: keys, versions, or a program that is not a peer"),
        ("dead letters", f"{status.holes} in this run; {_join(holes)}" if status.holes else "",
         False, "group them with counterpoise doctor --dead-letter FILE, if the loader has "
         "OnError(dead_letter=...)"),
    )  # fmt: skip
    return [judge(name, text, bad=bad, warn=warn) for name, text, bad, warn in rows if text]


def _count_workers(status: StatusReport) -> str:
    unready = [worker for worker in status.worker_statuses if worker.state == "opening"]
    # The report lists a bounded number of workers, those that are not ready first.
    text = f"{status.workers - len(unready)} ready"
    text += f", {len(unready)} not yet" if unready else ""
    busy = _mean_busy(status)
    return text + ("" if busy is None else f", at work {busy:.0%} of the time")


def slow_workers(workers: Sequence[WorkerStatus]) -> list[tuple[WorkerStatus, float]]:
    """Return the workers much slower than the median, slowest first, each with its share of it.

    Speed is samples decoded per second of work, so a worker without work does not count as slow.
    """
    rates = [(w, decode_rate(w)) for w in workers if w.recent_decoded >= ENOUGH_SAMPLES]
    known = [(worker, rate) for worker, rate in rates if rate > 0]
    if len(known) < 2:
        return []
    median = statistics.median(rate for _, rate in known)
    slow = [(worker, rate / median) for worker, rate in known if rate < SLOW_SHARE * median]
    return sorted(slow, key=lambda pair: (pair[1], pair[0].name))


def _describe_run(status: StatusReport) -> str:
    if status.trouble:
        return status.trouble
    if status.epoch < 0:
        return f"none: waiting for {status.waiting}"
    at = f"step {status.front}" if status.front >= 0 else "before its first planned step"
    return f"epoch {status.epoch}, {at}, trainer processes: {status.trainers}"


def waits_text(trainer: TrainerStatus) -> str:
    """Return a text that says how long a trainer has waited, and for what."""
    place = f"step {trainer.step}, microbatch {trainer.microbatch}"
    age = seconds(trainer.oldest_request_ms)
    return f"ranks {trainer.ranks} for {age} ({place}): {trainer.missing or 'it must arrive'}"


_MEASURED = "samples are decoded to be measured: give cost= a table, or the data set a probe"
_COSTS = "costs are not known in time: run counterpoise analyze once, it writes them to files"


def _explain_waits(status: StatusReport, waiting: Sequence[TrainerStatus]) -> str:
    """Return the advice for the first bottleneck that explains why ranks wait."""
    missing = "\n".join(trainer.missing for trainer in waiting)
    busy = _mean_busy(status) or 0.0
    causes = (
        (not status.workers, "there are no workers: start some"),
        ("a worker to" in missing, "no worker has the data open: see the workers' output"),
        (re.search("label tokens|which shares|not here|to begin", missing),
         "see what those processes wait for"),
        ("the plan of" in missing,
         "planning takes longer than training: give the balancer a free core"),
        (re.search("to be planned|costs of the next window", missing),
         _MEASURED if status.loads_to_measure else _COSTS),
        (busy > BUSY_SHARE,
         "the workers are busy all the time: add some, or make decoding cheaper"),
        (status.is_full, "the byte budget is full: raise buffer_bytes"),
        (True, "the workers are not busy: their disk or the network may be slow"),
    )  # fmt: skip
    return next(advice for is_so, advice in causes if is_so)


def _mean_busy(status: StatusReport) -> float | None:
    """Return the mean share of time that workers are at work, None if no worker reports it."""
    busy = [share for worker in status.worker_statuses if (share := busy_share(worker)) is not None]
    return statistics.fmean(busy) if busy else None


def _describe_payloads(status: StatusReport, has_waiting: bool) -> str:
    held, budget = status.held_bytes / GIB, status.budget_bytes / GIB
    text = f"{held:.2f} GiB held" + (f" of {budget:.2f} GiB" if 0 < budget < 2**20 else "")
    ways = sorted({worker.transport for worker in status.worker_statuses if worker.transport})
    text += f", carried {_join(ways)}" if ways else ""
    is_ahead = status.is_full and not has_waiting
    return text + (", full: the trainer is the bottleneck, as it should be" if is_ahead else "")


def _join(texts: Sequence[str]) -> str:
    more = f"; and {len(texts) - NAMED} more" if len(texts) > NAMED else ""
    return "; ".join(texts[:NAMED]) + more


@dataclass(frozen=True, slots=True)
class Examination:
    """Findings; of a job also its status, or that it did not answer; of a step its keys."""

    findings: list[Finding]
    status: StatusReport | None = None
    unanswered: bool = False
    keys: tuple[str, ...] = ()


def examine_job(
    address: str, timeout_s: float, keys: Path | None = None, job: str = ""
) -> Examination:
    """Ask the balancer at an address for its status, and judge the answer.

    keys: a trainer's folder. job: by default that of the keys, or the balancer's first. Raises
    ValueError if the address is malformed or the keys are missing.
    """
    trainer_keys = peer_keys(keys, "trainer") if keys else None
    with observe(address, trainer_keys, job) as observer:
        answer = observer.ask(GetStatus(), StatusReport, timeout_s)
        asked_at = time.monotonic()  # again: the first time it had to connect
        if not isinstance(answer, str):
            answer = observer.ask(GetStatus(), StatusReport, timeout_s)
        answer_s = time.monotonic() - asked_at
    if not isinstance(answer, str):
        return Examination(judge_status(address, answer, answer_s), answer)
    advice = (
        "check that the balancer runs there, that no firewall is in between, and that it has this "
        "version; give --keys if it has keys"
    )
    finding = Finding("balancer", BAD, f"{address}: {answer}", advice)
    return Examination([finding], unanswered=True)
