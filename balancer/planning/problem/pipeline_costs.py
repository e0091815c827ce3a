"""The pipeline that microbatches are ordered for: schedule, stages, and costs of their passes.

A user names a file, `Balance(pipeline="costs.json")`, whose placement says which schedule it is.
The trainer reads it, and the plan's configuration holds what it says, as JSON text: a balancer on
another host needs no file, and the plan's digest changes when the costs do.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

ScheduleName = Literal["1f1b", "interleaved"]
Whole = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62))]


class PassEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The cost of a stage's pass in nanoseconds, as cost profiles say it."""

    fixed: Whole = 0
    per_thousand: dict[str, Whole] = {}
    points: dict[str, tuple[tuple[Whole, Whole], ...]] = {}


class PipelineCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pipeline: `placement` has the rank of each stage, `passes` one entry per stage, or one."""

    schedule: ScheduleName
    placement: tuple[Whole, ...]
    passes: dict[str, tuple[PassEntry, ...]]


class _Profile(msgspec.Struct, frozen=True):
    """The part of a cost profile that ordering reads; it has more fields."""

    placement: tuple[Whole, ...]
    passes: dict[str, tuple[PassEntry, ...]]


class _Job(msgspec.Struct, frozen=True):
    """The part of a job's plan that is read here."""

    costs: _Profile
    balance: dict[str, Any] = {}


Read = TypeVar("Read", PipelineCosts, _Profile, _Job)


def job_section(text: str) -> dict[str, Any] | None:
    """Return the rules in a job's plan; None for text that is no such plan.

    >>> job_section('{"balance": {"seed": 2}, "costs": {"placement": [0], "passes": {}}}')
    {'seed': 2}
    """
    try:
        return _decode(text.encode(), _Job).balance
    except ValueError:
        return None


def read_costs(path: str) -> str:
    """Return a pipeline with the costs of a profile's file, as the text of a plan.

    Raises ValueError, with the file's name, for a file that is missing or no cost profile.
    """
    try:
        text = Path(path).read_bytes()
        is_job = job_section(text.decode()) is not None
        profile = _decode(text, _Job).costs if is_job else _decode(text, _Profile)
    except OSError as error:
        raise ValueError(f"pipeline names the cost profile {path}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"the cost profile {path}: {error}") from None
    placement = profile.placement
    is_interleaved = len(placement) > len({*placement})  # several stages on each rank
    schedule: ScheduleName = "interleaved" if is_interleaved else "1f1b"
    return _text(PipelineCosts(schedule, placement, profile.passes))


def with_profile(text: str, profile: str) -> str:
    """Return a plan's pipeline with the costs of another cost profile, given as its JSON.

    Raises ValueError for text that is no cost profile, and for a profile of other stages.
    """
    before = parse_pipeline(text)
    try:
        measured = _decode(profile.encode(), _Profile)
    except ValueError as error:
        raise ValueError(f"the measured cost profile: {error}") from None
    if measured.placement != before.placement:
        raise ValueError(
            f"the measured cost profile has stages on ranks {list(measured.placement)}, the plan's "
            f"pipeline on {list(before.placement)}; give Balance(pipeline=...) the same layout"
        )
    return _text(PipelineCosts(before.schedule, measured.placement, measured.passes))


def _text(pipeline: PipelineCosts) -> str:
    _check(pipeline)
    return msgspec.json.encode(pipeline, order="sorted").decode()


def parse_pipeline(text: str) -> PipelineCosts:
    """Return the pipeline in a plan's text. Raises ValueError if it is none."""
    try:
        pipeline = _decode(text.encode(), PipelineCosts)
    except ValueError as error:
        raise ValueError(f"the plan's pipeline: {error}") from None
    _check(pipeline)
    return pipeline


def _decode(text: bytes, kind: type[Read]) -> Read:
    try:
        return msgspec.json.decode(text, type=kind)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _check(pipeline: PipelineCosts) -> None:
    """Raise ValueError for costs of other stages, and placements that the schedule has not."""
    stages = len(pipeline.placement)
    ranks = max(pipeline.placement, default=-1) + 1
    one_each = pipeline.schedule == "1f1b"
    around = tuple(stage % max(1, ranks) for stage in range(stages))
    if not stages or pipeline.placement != around or one_each != (stages == ranks):
        has = "one stage on each rank" if one_each else "several stages on each rank, in rounds"
        raise ValueError(
            f"schedule {pipeline.schedule!r} has {has}, the cost profile's placement is "
            f"{list(pipeline.placement)}; profile the job with the schedule that it trains with"
        )
    if "F" not in pipeline.passes:
        raise ValueError("the cost profile has no costs of F, the forward pass; profile the job")
    if "I" in pipeline.passes and "B" not in pipeline.passes and "W" not in pipeline.passes:
        raise ValueError("the cost profile has costs of I and none of W; profile the job")
    for kind, entries in pipeline.passes.items():
        # Passes of the output layer, divided over the ranks, have an entry for each rank.
        if len(entries) not in (1, stages, stages if kind in "FBIW" else ranks):
            raise ValueError(f"{kind}: got {len(entries)} costs; give all {stages} stages', or one")
        _check_points(kind, entries)


def _check_points(kind: str, entries: tuple[PassEntry, ...]) -> None:
    for cost in entries:
        for name, points in cost.points.items():
            amounts = [amount for amount, _ in points]
            if len(amounts) < 2 or amounts != sorted(set(amounts)):
                raise ValueError(
                    f"points of {name} in {kind} are {[list(point) for point in points]}; give two "
                    "or more [amount, cost], amounts rising"
                )
