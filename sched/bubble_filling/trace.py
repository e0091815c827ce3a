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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir.kinds import BACKWARD
from ..ir.program import parse_pass
from .gaps import (
    COMMUNICATING,
    COMPUTING,
    FREE,
    Gaps,
    Ints,
    Stretches,
    dependency_points,
    fill_holes,
    running,
)

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
    # Sends and receives use the network, which a guest's tensor-parallel collectives do not.
    linked = [k for k in kernels if COLLECTIVE.search(k.name) and not NETWORK.search(k.name)]
    computing = [k for k in kernels if k.start < k.end and not COLLECTIVE.search(k.name)]
    if not computing:
        raise ValueError(f"device {kernels[0].device} computes nothing; is it part of the job?")
    own, shared = (
        np.array([(k.start - begin, k.end - begin) for k in some], np.int64).reshape(-1, 2).T
        for some in (computing, linked)
    )
    edges = np.unique(np.concatenate((*own, *shared)))
    low = edges[:-1]
    busy = running(own[0], own[1], low)
    between = (low >= own[0].min()) & (low < own[1].max())
    only = running(shared[0], shared[1], low) & between
    kind = np.where(busy, COMPUTING, np.where(only, COMMUNICATING, FREE))
    # Neighbours of a kind are one stretch.
    new = np.append(True, kind[1:] != kind[:-1])
    low, kind, high = low[new], kind[new], np.append(low[new][1:], edges[-1])
    keep = kind != FREE
    return fill_holes(low[keep], high[keep], kind[keep], step)


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
