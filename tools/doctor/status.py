"""What the doctor thinks of a running job: a balancer's overview in, findings in words out."""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from ...balancer.protocol.clock_offset import Offset
from ...balancer.protocol.messages import StatusReport, TrainerStatus, WorkerStatus
from ...balancer.protocol.software_version import VERSION
from .figures import GIB, clock_text, kept_busy, seconds, speed
from .finding import Finding, judge

# A balancer that takes longer than this to answer is busy with something else.
SLOW_ANSWER_S = 0.1
# Workers say every second that they are alive.
SILENT_MS = 3_000
# A worker this much slower than the median is named, if it has done so many samples lately.
SLOW_SHARE, ENOUGH = 0.5, 8
# What was lost longer ago than this is history.
LATELY_MS = 600_000
# Workers at work for this part of the time are the bottleneck.
BUSY = 0.8
NAMED = 3


def judge_overview(
    address: str, overview: StatusReport, times_s: Sequence[float], clock: Offset, skew_ms: float
) -> list[Finding]:
    """Return what to think of an overview, which took `times_s` to come.

    clock: how far this machine's clock is ahead of the balancer's; skew_ms: how much is too much.
    """
    answer_s = statistics.median(times_s) if times_s else 0.0
    return [
        judge(
            "balancer",
            f"{address} answers in {1000 * answer_s:.1f} ms",
            warn=answer_s > SLOW_ANSWER_S and "it is busy or far away: batches will be late, too",
        ),
        *_workers(address, overview),
        *_versions(overview),
        *_clocks(overview, clock, skew_ms),
        _run(overview),
        *_ranks(overview),
        _payloads(overview),
        *_losses(overview),
    ]


def _workers(address: str, overview: StatusReport) -> Iterator[Finding]:
    ready = [note for note in overview.notes if note.state == "ready"]
    unready = overview.workers - len(ready) if len(overview.notes) == overview.workers else 0
    found = f"{overview.workers - unready} ready" + (f", {unready} not yet" if unready else "")
    busy = _mean_busy(overview)
    found += "" if busy is None else f", at work {busy:.0%} of the time"
    start = f"start some: counterpoise worker {address} --root FOLDER"
    yield judge("workers", found, bad=not overview.workers and start)
    silent = [note for note in overview.notes if note.heard_ms > SILENT_MS]
    if silent:
        told = [f"{note.name} ({seconds(note.heard_ms)})" for note in silent]
        advice = "each is stopped, hangs, or is cut off: look at it; its work goes to others"
        yield judge("silent workers", _named(told), bad=advice)
    late = [note.name for note in overview.notes if note.late]
    if late:
        advice = "each let a lease run out and has shown no result since: what is it doing?"
        yield judge("late workers", _named(late), warn=advice)
    slow = slow_workers(ready)
    if slow:
        told = [f"{note.name} ({share:.0%} of the median speed)" for note, share in slow]
        advice = "is its machine shared, its disk slow, or is it short of processors?"
        yield judge("slow workers", _named(told), warn=advice)
    if overview.turned_away:
        yield judge("turned away", _named(overview.turned_away), bad="see the reasons")


def slow_workers(notes: Sequence[WorkerStatus]) -> list[tuple[WorkerStatus, float]]:
    """Return the workers much slower than the median, slowest first, with their share of it.

    Speed is samples decoded per second of work, so that a worker with nothing to do is not slow.
    """
    speeds = [(note, speed(note)) for note in notes if note.recent_decoded >= ENOUGH]
    known = [(note, found) for note, found in speeds if found > 0]
    if len(known) < 2:
        return []
    middle = statistics.median(found for _, found in known)
    slow = [(note, found / middle) for note, found in known if found < SLOW_SHARE * middle]
    return sorted(slow, key=lambda each: (each[1], each[0].name))


def _versions(overview: StatusReport) -> Iterator[Finding]:
    mine, theirs = f"counterpoise {VERSION}", overview.software
    told = [f"the balancer has {theirs}"] if mine not in theirs.split(", ") else []
    told += different_software(overview.notes)
    prints = Counter(note.fingerprint for note in overview.notes if note.fingerprint)
    if len(prints) > 1:
        rare = [n.name for n in overview.notes if n.fingerprint == prints.most_common()[-1][0]]
        told.append(f"{len(prints)} fingerprints of data and transform; rare: {_named(rare)}")
    yield judge(
        "versions",
        _named(told) if told else f"all have {mine}",
        warn=bool(told) and "install the same everywhere, or samples may differ in their bytes",
    )


def different_software(notes: Sequence[WorkerStatus]) -> list[str]:
    """Return which workers have other versions than most, and of what.

    >>> different_software([])
    []
    """
    texts = Counter(note.software for note in notes if note.software)
    if len(texts) < 2:
        return []
    usual = texts.most_common(1)[0][0]
    found = []
    for note in notes:
        own = sorted(set(note.software.split(", ")) - set(usual.split(", ")))
        if note.software and own:
            found.append(f"{note.name} has {', '.join(own)}")
    return found


def _clocks(overview: StatusReport, clock: Offset, skew_ms: float) -> Iterator[Finding]:
    here = Offset(-clock.ahead_us, clock.error_us)
    peers = [("the balancer, from this machine,", here)]
    peers += [(n.name, Offset(n.ahead_us, n.error_us)) for n in overview.notes]
    peers += [(f"ranks {n.ranks}", Offset(n.ahead_us, n.error_us)) for n in overview.ranks]
    known = [(name, offset) for name, offset in peers if offset.is_known]
    off = [(name, offset) for name, offset in known if offset.least_us() > 1000 * skew_ms]
    off.sort(key=lambda each: -each[1].least_us())
    if off:
        found = _named([f"{name} {clock_text(offset)}" for name, offset in off])
    else:
        found = f"{len(known)} of {len(peers)} known, all within {skew_ms:g} ms"
    advice = "let all follow one time server (chrony): logs and files' times do not fit together"
    yield judge("clocks", found, warn=bool(off) and advice)


def _run(overview: StatusReport) -> Finding:
    if overview.trouble:
        return judge("run", overview.trouble, bad="the run has ended: see the reason")
    if overview.epoch < 0:
        return judge("run", f"none: waits for {overview.waiting}")
    at = f"step {overview.front}" if overview.front >= 0 else "before its first planned step"
    return judge("run", f"epoch {overview.epoch}, {at}, trainer processes: {overview.trainers}")


def _ranks(overview: StatusReport) -> Iterator[Finding]:
    waiting = [note for note in overview.ranks if note.waits]
    if waiting:
        found = _named([waits_text(note) for note in waiting])
        yield judge("ranks that wait", found, warn=_why_they_wait(overview, waiting))


def waits_text(note: TrainerStatus) -> str:
    """Say what a trainer waits for, and since when."""
    needs = note.needs or "it to arrive: it is sent"
    place = f"step {note.step}, microbatch {note.microbatch}"
    return f"ranks {note.ranks} for {seconds(note.asked_ms)} ({place}): {needs}"


def _why_they_wait(overview: StatusReport, waiting: Sequence[TrainerStatus]) -> str:
    busy = _mean_busy(overview)
    if not overview.workers:
        return "there are no workers: start some"
    if any("to be planned" in note.needs for note in waiting):
        if any(note.recent_decoded and not note.recent_decode_ms for note in overview.notes):
            return "samples are decoded to be measured: give cost= a table, or a probe to the data"
        return "costs are not known in time: run counterpoise analyze once, it keeps them"
    if busy is not None and busy > BUSY:
        return "the workers are busy all the time: add some, or make decoding cheaper"
    if is_full(overview):
        return "the byte budget is full: raise buffer_bytes"
    return "the workers are not busy: their disk or the network may be slow"


def _mean_busy(overview: StatusReport) -> float | None:
    """Return the part of the time that workers are at work, None where nobody tells."""
    busy = [share for note in overview.notes if (share := kept_busy(note)) is not None]
    return statistics.fmean(busy) if busy else None


def is_full(overview: StatusReport) -> bool:
    """Whether the byte budget has no room for another sample."""
    used = overview.held_bytes + overview.reserved_bytes
    return overview.epoch >= 0 and used + overview.largest_bytes > overview.budget_bytes


def _payloads(overview: StatusReport) -> Finding:
    held, budget = overview.held_bytes / GIB, overview.budget_bytes / GIB
    found = f"{held:.2f} GiB held" + (f" of {budget:.2f} GiB" if 0 < budget < 2**20 else "")
    if any(note.waits for note in overview.ranks):
        return judge("payloads", found)
    if is_full(overview):
        found += ", full: the trainer is the bottleneck, which is as it should be"
    elif overview.settled:
        found += ", all that is planned is decoded: the trainer is the bottleneck"
    return judge("payloads", found)


def _losses(overview: StatusReport) -> Iterator[Finding]:
    if overview.expired:
        lately = overview.expired_ms < LATELY_MS
        found = f"{overview.expired} ran out, the last {seconds(overview.expired_ms)} ago"
        advice = "a worker hung, or took longer for a sample than lease_s allows"
        yield judge("leases", found, warn=lately and advice)
    if overview.lost:
        lately = overview.lost_ms < LATELY_MS
        last = f"the last {seconds(overview.lost_ms)} ago: {_named(overview.last_lost[::-1])}"
        advice = "see their own output, and dmesg for processes killed for memory"
        yield judge("lost workers", f"{overview.lost}, {last}", warn=lately and advice)
    if overview.refused:
        advice = "the balancer's log says why: keys, versions, or something that is no peer"
        yield judge("refused", f"{overview.refused} messages or peers", warn=advice)
    if overview.dropped:
        yield judge("dropped", f"{overview.dropped} messages that came late or twice")
    if overview.holes:
        told = [f"{hole.key!r}: {hole.reason}" for hole in overview.last_holes]
        advice = (
            "counterpoise doctor --dead-letter FILE groups them, if the loader has dead_letter="
        )
        yield judge("dead letters", f"{overview.holes} in this run; {_named(told)}", warn=advice)


def _named(texts: Sequence[str]) -> str:
    more = f"; and {len(texts) - NAMED} more" if len(texts) > NAMED else ""
    return "; ".join(texts[:NAMED]) + more
