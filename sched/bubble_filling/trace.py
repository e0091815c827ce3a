"""Reader of gaps from a Chrome trace (torch.profiler's, say) of one step of the language model.

It reads complete events ("ph": "X", microseconds). Kernels (`cat` "kernel" or "gpu_...") go by
device (`args.device`, else `pid`), one device a pipeline rank; a kernel whose name looks like a
collective communicates, others compute. Communication outside a rank's first to last computation is
the data-parallel one, and sends and receives use the network too: both leave the GPU FREE.
Annotations named like passes say when the language model needs encoder output: `0F3` is the
forward of microbatch 3 at stage 0, `0B3` (or `0I3`) its backward.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir.kinds import BACKWARD
from ..ir.program import parse_pass
from .gaps import COMMUNICATING, COMPUTING, Gaps, Ints, Stretches, dependency_points, fill_holes

COLLECTIVE = re.compile(r"nccl|all_?gather|reduce_?scatter|all_?reduce|collective", re.I)
NETWORK = re.compile(r"send|recv", re.I)


@dataclass(frozen=True, slots=True)
class _Event:
    name: str
    device: str
    start: int
    end: int


def read_trace(text: str) -> Gaps:
    """Return the gaps of a trace; the step lasts from its first kernel to its last.

    Raises ValueError if it is no trace, has no kernels, or no annotations of stage 0.
    """
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"the trace is not JSON: {error}") from None
    rows = raw.get("traceEvents") if isinstance(raw, dict) else raw
    if not isinstance(rows, list):
        raise ValueError("the trace has no traceEvents; give a Chrome trace")
    # Events that have a duration: no metadata, counters or flows.
    complete = [row for row in rows if isinstance(row, dict) and row.get("ph") == "X"]
    kernels = [_event(row) for row in complete if _is_kernel(row)]
    if not kernels:
        raise ValueError("the trace has no kernels (cat kernel); record GPU activities")
    begin = min(one.start for one in kernels)
    step = max(one.end for one in kernels) - begin
    devices = sorted({one.device for one in kernels}, key=_natural)
    ranks = tuple(
        _rank([one for one in kernels if one.device == device], begin, step) for device in devices
    )
    need, gradient = _marks([_event(row) for row in complete if not _is_kernel(row)], begin)
    return Gaps(ranks, need, gradient, step)


def _is_kernel(row: Mapping[str, Any]) -> bool:
    category = str(row.get("cat", "")).lower()
    return category == "kernel" or category.startswith("gpu_mem")


def _event(row: Mapping[str, Any]) -> _Event:
    try:
        start, length = round(float(row["ts"]) * 1000), round(float(row["dur"]) * 1000)
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"an event without ts and dur: {row}") from None
    args = row.get("args")
    device = args.get("device", row.get("pid", 0)) if isinstance(args, dict) else row.get("pid", 0)
    return _Event(str(row.get("name", "")), str(device), start, start + length)


def _natural(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdigit() else (10**9, text)


def _rank(kernels: list[_Event], begin: int, step: int) -> Stretches:
    """Return a rank's stretches: where it computes, and where it only communicates in between."""
    busy = _union((k.start, k.end) for k in kernels if not COLLECTIVE.search(k.name))
    if not busy:
        raise ValueError(f"device {kernels[0].device} computes nothing; is it part of the job?")
    # Sends and receives use the network, which a guest's tensor-parallel collectives do not.
    linked = [k for k in kernels if COLLECTIVE.search(k.name) and not NETWORK.search(k.name)]
    inner = [(max(k.start, busy[0][0]), min(k.end, busy[-1][1])) for k in linked]
    only = _without(_union(pair for pair in inner if pair[0] < pair[1]), busy)
    rows = sorted([(a, b, COMPUTING) for a, b in busy] + [(a, b, COMMUNICATING) for a, b in only])
    start, end, kind = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    return fill_holes(start - begin, end - begin, kind, step)


def _union(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return intervals joined where they touch.

    >>> _union([(0, 2), (5, 6), (1, 3)])
    [(0, 3), (5, 6)]
    """
    joined: list[tuple[int, int]] = []
    for start, end in sorted(pairs):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        elif start < end:
            joined.append((start, end))
    return joined


def _without(pairs: list[tuple[int, int]], holes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of `pairs` outside `holes`; both ascending and disjoint.

    >>> _without([(0, 10)], [(2, 3), (9, 12)])
    [(0, 2), (3, 9)]
    """
    left, at = [], 0
    for start, end in pairs:
        while at and holes[at - 1][1] > start:
            at -= 1
        while at < len(holes) and holes[at][0] < end:
            if holes[at][0] > start:
                left.append((start, holes[at][0]))
            start = max(start, holes[at][1])
            at += 1
        if start < end:
            left.append((start, end))
    return left


def _marks(events: list[_Event], begin: int) -> tuple[Ints, Ints]:
    """Return F_i and B_i from annotations."""
    need: dict[int, int] = {}
    gradient: dict[int, int] = {}
    for one in events:
        try:
            what = parse_pass(one.name)
        except ValueError:  # some other annotation
            continue
        if what.stage == 0 and what.kind == "F":
            need[what.microbatch] = one.start - begin
        elif what.stage == 0 and what.kind in BACKWARD:
            gradient[what.microbatch] = one.end - begin
    if not need or set(need) != set(gradient):
        raise ValueError(
            "the trace does not name stage 0's passes; annotate them, such as 0F3 and 0B3"
        )
    return dependency_points(need, gradient)
