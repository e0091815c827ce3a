"""Asks a running job's balancer for its status, as a peer that takes no part, and judges it."""

import os
import re
import socket
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...balancer.protocol.records import VERSION
from ...balancer.protocol.status_messages import (
    UNKNOWN_US,
    StatusReport,
    TrainerStatus,
    WorkerStatus,
)
from ...balancer.transport.finding import find_address
from .asking import Answers, ask, own_keys
from .figures import BAD, GIB, Finding, busy_share, clock_text, decode_rate, judge, seconds

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
# A clock that is further off is named.
SKEW_MS = 500
NAMED = 3


def judge_status(
    address: str, status: StatusReport, times_s: Sequence[float], ahead_us: int
) -> list[Finding]:
    """Return the findings about a balancer's status report.

    times_s: seconds that each answer took; ahead_us: the balancer's clock minus this machine's.
    """
    answer_s = statistics.median(times_s) if times_s else 0.0
    return [
        judge(
            "balancer",
            f"{address} answers in {1000 * answer_s:.1f} ms",
            warn=answer_s > SLOW_ANSWER_S
            and "it is busy or far away: expect batches to be late, too",
        ),
        *_workers(address, status),
        *_versions(status),
        *_clocks(status, ahead_us),
        _run(status),
        *_waiting_ranks(status),
        _payloads(status),
        *_losses(status),
    ]


def _workers(address: str, status: StatusReport) -> Iterator[Finding]:
    ready = [each for each in status.worker_statuses if each.state in ("ready", "leaving")]
    # The report lists a bounded number of workers: unless it has all, who is not ready is unknown.
    is_complete = len(status.worker_statuses) == status.workers
    unready = status.workers - len(ready) if is_complete else 0
    found = f"{status.workers - unready} ready" + (f", {unready} not yet" if unready else "")
    busy = _mean_busy(status)
    found += "" if busy is None else f", at work {busy:.0%} of the time"
    start = f"start some: counterpoise worker {address} --root FOLDER"
    yield judge("workers", found, bad=not status.workers and start)
    yield from _silent_and_late(status.worker_statuses)
    if slow := slow_workers(ready):
        names = [f"{worker.name} ({share:.0%} of the median speed)" for worker, share in slow]
        advice = "check its machine: other load, a slow disk, too few processors"
        yield judge("slow workers", _join(names), warn=advice)
    if status.rejected_workers:
        hidden = status.turned_away - len(status.rejected_workers)
        more = f", and {hidden} before" if hidden > 0 else ""
        found = f"{_join(status.rejected_workers)}{more}"
        yield judge("turned away", found, bad="fix the reason given for each")


def _silent_and_late(workers: Sequence[WorkerStatus]) -> Iterator[Finding]:
    """Yield findings about workers that send nothing, and those at one sample for long."""
    silent = [
        f"{worker.name} ({seconds(worker.last_message_ms)})"
        for worker in workers
        if worker.last_message_ms > SILENT_MS
    ]
    if silent:
        advice = "each is stopped, hung or cut off: check it; its work goes to others"
        yield judge("silent workers", _join(silent), bad=advice)
    late = [worker.name for worker in workers if worker.unresponsive]
    if late:
        advice = (
            "each is at one sample for long, and given up after lease_s: check what it is doing"
        )
        yield judge("late workers", _join(late), warn=advice)


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
    return sorted(slow, key=lambda each: (each[1], each[0].name))


def _versions(status: StatusReport) -> Iterator[Finding]:
    mine, theirs = f"counterpoise {VERSION}", status.software
    texts = [f"the balancer has {theirs}"] if mine not in theirs.split(", ") else []
    texts += different_software(status.worker_statuses)
    prints = Counter(worker.fingerprint for worker in status.worker_statuses if worker.fingerprint)
    if len(prints) > 1:
        rarest = prints.most_common()[-1][0]
        rare = [each.name for each in status.worker_statuses if each.fingerprint == rarest]
        texts.append(f"{len(prints)} fingerprints of data and transform; rare: {_join(rare)}")
    yield judge(
        "versions",
        _join(texts) if texts else f"all have {mine}",
        warn=bool(texts)
        and "install the same versions everywhere, or samples may differ in their bytes",
    )


def different_software(workers: Sequence[WorkerStatus]) -> list[str]:
    """Return a text for each worker whose versions differ from the most common ones.

    >>> different_software([])
    []
    """
    texts = Counter(worker.software for worker in workers if worker.software)
    if len(texts) < 2:
        return []
    usual = texts.most_common(1)[0][0]
    found = []
    for worker in workers:
        own = sorted(set(worker.software.split(", ")) - set(usual.split(", ")))
        if worker.software and own:
            found.append(f"{worker.name} has {', '.join(own)}")
    return found


def _clocks(status: StatusReport, ahead_us: int) -> Iterator[Finding]:
    peers = [("the balancer, from this machine,", ahead_us)]
    peers += [(each.name, each.ahead_us) for each in status.worker_statuses]
    peers += [(f"ranks {each.ranks}", each.ahead_us) for each in status.trainer_statuses]
    known = [(name, ahead) for name, ahead in peers if ahead != UNKNOWN_US]
    off = [(name, ahead) for name, ahead in known if abs(ahead) > 1000 * SKEW_MS]
    off.sort(key=lambda each: -abs(each[1]))
    if off:
        found = _join([f"{name} {clock_text(ahead)}" for name, ahead in off])
    else:
        found = f"{len(known)} of {len(peers)} known, all within {SKEW_MS} ms"
    advice = (
        "synchronize all with one time server (chrony): times in logs and of files do not match"
    )
    yield judge("clocks", found, warn=bool(off) and advice)


def _run(status: StatusReport) -> Finding:
    if status.trouble:
        return judge(
            "run", status.trouble, bad="the run has ended: fix the reason, then start it again"
        )
    if status.epoch < 0:
        return judge("run", f"none: waiting for {status.waiting}")
    at = f"step {status.front}" if status.front >= 0 else "before its first planned step"
    return judge("run", f"epoch {status.epoch}, {at}, trainer processes: {status.trainers}")


def _waiting_ranks(status: StatusReport) -> Iterator[Finding]:
    waiting = [trainer for trainer in status.trainer_statuses if trainer.is_waiting]
    if waiting:
        found = _join([waits_text(trainer) for trainer in waiting])
        yield judge("ranks that wait", found, warn=_why_they_wait(status, waiting))


def waits_text(trainer: TrainerStatus) -> str:
    """Return a text that says how long a trainer has waited, and for what."""
    place = f"step {trainer.step}, microbatch {trainer.microbatch}"
    age = seconds(trainer.oldest_request_ms)
    return f"ranks {trainer.ranks} for {age} ({place}): {trainer.missing or 'it must arrive'}"


# What waiting ranks need that no worker is to load, and what helps.
_OF_OTHERS = (
    ("a worker to", "no worker has the data open: see the workers' output"),
    ("label tokens|which shares|not here|to begin", "see what those processes wait for"),
    ("the plan of", "planning takes longer than training: give the balancer a free core"),
)


def _why_they_wait(status: StatusReport, waiting: Sequence[TrainerStatus]) -> str:
    """Return the advice for the first bottleneck that explains why ranks wait."""
    busy = _mean_busy(status)
    if not status.workers:
        return "there are no workers: start some"
    missing = "\n".join(trainer.missing for trainer in waiting)
    for words, advice in _OF_OTHERS:
        if re.search(words, missing):
            return advice
    if "to be planned" in missing or "costs of the next window" in missing:
        if status.loads_to_measure:
            return "samples are decoded to be measured: give cost= a table, or the data set a probe"
        return "costs are not known in time: run counterpoise analyze once, it writes them to files"
    if busy is not None and busy > BUSY_SHARE:
        return "the workers are busy all the time: add some, or make decoding cheaper"
    if status.is_full:
        return "the byte budget is full: raise buffer_bytes"
    return "the workers are not busy: their disk or the network may be slow"


def _mean_busy(status: StatusReport) -> float | None:
    """Return the mean share of time that workers are at work, None if no worker reports it."""
    busy = [share for worker in status.worker_statuses if (share := busy_share(worker)) is not None]
    return statistics.fmean(busy) if busy else None


def _payloads(status: StatusReport) -> Finding:
    held, budget = status.held_bytes / GIB, status.budget_bytes / GIB
    found = f"{held:.2f} GiB held" + (f" of {budget:.2f} GiB" if 0 < budget < 2**20 else "")
    ways = sorted({worker.transport for worker in status.worker_statuses if worker.transport})
    found += f", carried {_join(ways)}" if ways else ""
    if any(trainer.is_waiting for trainer in status.trainer_statuses):
        return judge("payloads", found)
    if status.is_full:
        found += ", full: the trainer is the bottleneck, as it should be"
    elif status.all_decoded:
        found += ", everything planned is decoded: the trainer is the bottleneck"
    return judge("payloads", found)


def _losses(status: StatusReport) -> Iterator[Finding]:
    if status.lost:
        recent = status.lost_ms < RECENT_MS
        last = f"the last {seconds(status.lost_ms)} ago: {_join(status.last_lost[::-1])}"
        advice = (
            "see their output, and dmesg for processes killed for lack of memory; where a sample "
            "took longer than lease_s, raise it"
        )
        yield judge("lost workers", f"{status.lost}, {last}", warn=recent and advice)
    if status.refused:
        advice = (
            "see the balancer's log for the reason: keys, versions, or a program that is not a peer"
        )
        yield judge("refused", f"{status.refused} messages or peers", warn=advice)
    if status.holes:
        texts = [f"{hole.key!r}: {hole.reason}" for hole in status.last_holes]
        advice = (
            "group them with counterpoise doctor --dead-letter FILE, if the loader has dead_letter="
        )
        yield judge("dead letters", f"{status.holes} in this run; {_join(texts)}", warn=advice)
    if status.over_budget:
        advice = "give larger budgets, or leave such samples out with Balance(oversize='refuse')"
        found = f"{status.over_budget} samples of this run, in microbatches of their own"
        yield judge("over budget", found, warn=advice)


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
    """Ask the balancer at an address for its status, and judge the answers.

    keys: a trainer's folder. job: by default that of the keys, or the balancer's first. Raises
    ValueError if the address is malformed or the keys are missing.
    """
    address = find_address(address) or address
    own = own_keys(keys)
    # A balancer with keys counts a bare TCP connection as a refused peer, so do not try one first.
    reason = "" if own else _unreachable(address, timeout_s)
    answers = Answers(error=reason) if reason else ask(address, timeout_s, own, job)
    if own and answers.status is None:
        reason = _unreachable(address, timeout_s)
    if reason:
        advice = "check that the balancer runs there and that no firewall is in between"
        return Examination(
            [Finding("address", BAD, f"{address}: {reason}", advice)], unanswered=True
        )
    if answers.status is None:
        advice = "give --keys if it has keys; else another program or another version listens there"
        found = f"{address}: {answers.error or 'no answer'}"
        return Examination([Finding("balancer", BAD, found, advice)], unanswered=True)
    judged = judge_status(address, answers.status, answers.times_s, answers.ahead_us)
    return Examination(judged, answers.status)


def _unreachable(address: str, timeout_s: float) -> str:
    """Return why an address cannot be reached, "" if it can."""
    match = re.fullmatch(r"tcp://\[?([^\]]+)\]?:(\d+)", address)
    if match is None:
        if address.startswith("ipc://"):
            path = address.removeprefix("ipc://")
            return "" if os.path.exists(path) else "there is no such socket"  # noqa: PTH110
        raise ValueError(f"{address!r} is not an address; give one such as tcp://HOST:5555")
    try:
        with socket.create_connection((match[1], int(match[2])), timeout_s):
            return ""
    except (OSError, OverflowError) as error:
        return str(getattr(error, "strerror", None) or error).lower()
