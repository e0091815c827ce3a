"""Write timelines as a Chrome trace, which ui.perfetto.dev and chrome://tracing open.

A timeline is a process. It has a thread per rank, a thread per communicator that takes time, a
counter for each rank's memory, and arrows from each forward to that of the next stage (and from
each backward to that of the previous stage). Times are microseconds with three decimals, so whole
nanoseconds.

The format: "Trace Event Format", Chromium project.
"""

import json
from collections.abc import Iterator, Sequence

from ..ir.kinds import BACKWARD, is_staged
from ..ir.program import NO_MICROBATCH, Pass, format_pass
from ..simulation.timeline import Slot, Timeline
from .picture import chunk_number, label, rows

Event = dict[str, object]


def render_trace(timelines: Sequence[Timeline]) -> str:
    """Return the trace as JSON text. Raises ValueError without timelines."""
    if not timelines:
        raise ValueError("nothing to draw: got no timelines; give at least one")
    numbered = enumerate(timelines)
    events = [event for number, timeline in numbered for event in trace_events(timeline, number)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, separators=(",", ":"))


def trace_events(timeline: Timeline, process: int = 0) -> Iterator[Event]:
    """Yield one timeline's events as the process of that number."""
    yield _name("process_name", process, 0, timeline.name or f"schedule {process}")
    for thread, row in enumerate(rows(timeline)):
        yield _name("thread_name", process, thread, row.label)
        yield {**_name("thread_sort_index", process, thread, ""), "args": {"sort_index": thread}}
        for slot in row.slots:
            yield _complete(slot, timeline, process, thread, row.lane)
    yield from _arrows(timeline, process)
    yield from _memory(timeline, process)


def _name(target: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": target, "pid": process, "tid": thread, "args": {"name": name}}


def _complete(slot: Slot, timeline: Timeline, process: int, thread: int, lane: bool) -> Event:
    about: Event = {} if lane else {"stage": slot.what.stage}
    if slot.what.microbatch != NO_MICROBATCH:
        about["microbatch"] = slot.what.microbatch
    if is_staged(slot.what.kind) and not lane:
        about["chunk"] = chunk_number(slot.what, timeline.placement)
    return {
        "ph": "X",
        "name": label(slot, lane),
        "cat": slot.what.kind,
        "pid": process,
        "tid": thread,
        "ts": slot.start_ns / 1000,
        "dur": (slot.end_ns - slot.start_ns) / 1000,
        "args": about,
    }


def _arrows(timeline: Timeline, process: int) -> Iterator[Event]:
    """Yield an arrow for every output that leaves its rank, to the pass that uses it."""
    number = process << 32
    places = {slot.what: (rank, slot) for rank, row in enumerate(timeline.ranks) for slot in row}
    for pass_, (rank, slot) in places.items():
        # To the next stage's forward, or from a backward to the one before.
        step, kinds = (1, ("F",)) if pass_.kind == "F" else (-1, BACKWARD)
        users = (Pass(pass_.stage + step, kind, pass_.microbatch) for kind in kinds)
        for user in users if pass_.kind == "F" or pass_.kind in BACKWARD else ():
            if user not in places or places[user][0] == rank:
                continue
            there, taken = places[user]
            number += 1
            both: Event = {"name": format_pass(pass_), "cat": "flow", "id": number, "pid": process}
            yield {**both, "ph": "s", "tid": rank, "ts": slot.start_ns / 1000}
            yield {**both, "ph": "f", "bp": "e", "tid": there, "ts": taken.start_ns / 1000}


def _memory(timeline: Timeline, process: int) -> Iterator[Event]:
    for rank, curve in enumerate(timeline.memory):
        for time, held in curve:
            yield {
                "ph": "C",
                "name": f"memory, rank {rank}",
                "pid": process,
                "ts": time / 1000,
                "args": {"bytes": held},
            }
