"""Defines the job that a trainer gives the balancer: the source of samples and their plan."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from ..planning.problem.config import PlanConfig
from .records import read_record

BUFFER_BYTES = 1 << 30
# Bounds far above any training: a balancer allocates what a job asks for.
MAX_RANKS = 1 << 16
MAX_MICROBATCHES = 1 << 16
MAX_SAMPLES_PER_STEP = 1 << 24
MAX_SOURCE_DEPTH = 32
LABEL_TOKENS = "label_tokens"
# In place of a resource: ranks count label tokens in the batches that they collate.
IN_BATCHES = "batch"
ON_ERROR = ("raise", "skip")
# What a job does not say.
_UNSAID: dict[str, Any] = {"mixture": {}, "shift_labels": True}


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One loader's job; all ranks must bring the same. Wrong values raise ValueError.

    plan: how to balance. source: a JSON-able description for remote workers; empty where workers
    are born with theirs. buffer_bytes: the most bytes of decoded payload held. lease_s: seconds a
    worker may take for one sample. on_error: "raise", or "skip" to turn broken samples into holes.
    label_tokens: the resource that counts the tokens with a label, if samples cost it; "batch" (and
    no resource of that name): ranks count them in their batches. mixture: Recipe.facts() of a
    mixture, empty for other data. shift_labels: as in Balance.
    """

    plan: PlanConfig
    source: dict[str, Any] = field(default_factory=dict)
    shuffle: bool = True
    on_error: str = "raise"
    buffer_bytes: int = BUFFER_BYTES
    lease_s: float = 120.0
    label_tokens: str = LABEL_TOKENS
    mixture: dict[str, Any] = field(default_factory=dict)
    shift_labels: bool = True

    def __post_init__(self) -> None:
        if self.on_error not in ON_ERROR:
            raise ValueError(
                f"on_error is {self.on_error!r}, allowed are {ON_ERROR}; others cannot be balanced"
            )
        # JSON was checked against the annotations; what Python code gives was not.
        # A report of the job has it in eight bytes.
        if type(self.buffer_bytes) is not int or not 0 < self.buffer_bytes < 1 << 63:
            raise ValueError(
                f"buffer_bytes is {self.buffer_bytes!r}, needed is a positive integer below 2^63"
            )
        if type(self.shuffle) is not bool:
            raise ValueError(f"shuffle is {self.shuffle!r}, needed is True or False")
        if not self.lease_s > 0:
            raise ValueError(f"lease_s is {self.lease_s}, it must be positive")
        _check_extent(self.plan)
        check_depth(self.source, "the source's description")
        check_depth(self.mixture, "the mixture")

    @property
    def resources(self) -> tuple[str, ...]:
        """Names of the costs' columns."""
        return self.plan.resources

    @property
    def microbatches(self) -> int:
        """Microbatches per rank and step where that is known beforehand, else 0."""
        return 0 if self.plan.accumulate == "auto" else self.plan.accumulate

    @property
    def label(self) -> int:
        """The column that counts label tokens, or -1."""
        return self.resources.index(self.label_tokens) if self.counts_labels else -1

    @property
    def counts_labels(self) -> bool:
        """Return True if label tokens are counted."""
        return self.label_tokens in self.resources

    @property
    def counts_batches(self) -> bool:
        """Return True if ranks count label tokens in their batches, and the balancer adds up."""
        return self.label_tokens == IN_BATCHES and not self.counts_labels

    @property
    def label_source(self) -> str:
        """Return what counts label tokens, "" if nothing does; and where labels are not shifted."""
        counter = self.label_tokens if self.counts_labels or self.counts_batches else ""
        return counter if self.shift_labels else f"{counter}, shift_labels=False"


def _check_extent(plan: PlanConfig) -> None:
    for name, value, most in (
        ("ranks", plan.ranks, MAX_RANKS),
        ("microbatches per rank and step", plan.first_accumulate, MAX_MICROBATCHES),
        ("samples_per_step", plan.samples_per_step, MAX_SAMPLES_PER_STEP),
    ):
        if value > most:
            raise ValueError(f"{value} {name} are asked for, at most {most} can be planned")


def check_depth(value: object, name: str) -> None:
    """Raise ValueError if a value of JSON is nested deeper than any that is needed."""
    level = [value]
    for _ in range(MAX_SOURCE_DEPTH):
        if not level:
            return
        level = [
            inner
            for node in level
            if isinstance(node, dict | list | tuple)
            for inner in (node.values() if isinstance(node, dict) else node)
        ]
    raise ValueError(f"{name} is nested more than {MAX_SOURCE_DEPTH} deep")


def to_json(job: JobSpec) -> str:
    """Return the job as JSON; two jobs are the same when their JSON is.

    >>> job = JobSpec(PlanConfig(2, 8, 1, ("tokens",), (None,)), on_error="skip")
    >>> from_json(to_json(job)) == job
    True
    """
    settings = {k: setting for k, setting in asdict(job).items() if setting != _UNSAID.get(k, ...)}
    return json.dumps(settings, sort_keys=True)


def from_json(text: str) -> JobSpec:
    """Return the job in a JSON text; raise ValueError, naming the field, if it is none."""
    try:
        values = json.loads(text)
    except RecursionError:
        raise ValueError("the job's JSON is nested too deep") from None
    if not isinstance(values, dict) or "plan" not in values:  # it comes from something else
        raise ValueError('not a job: it is a JSON object with a "plan"')
    return read_record(JobSpec, values, "job")


def difference(mine: str, theirs: str) -> str:
    """Return the settings in which two jobs differ, as text.

    >>> plan = PlanConfig(2, 8, 1, ("tokens",), (None,))
    >>> difference(to_json(JobSpec(plan)), to_json(JobSpec(plan, on_error="skip")))
    "on_error: 'raise' here, 'skip' there"
    """
    here, there = _flat(json.loads(mine)), _flat(json.loads(theirs))
    return "; ".join(
        f"{name}: {here.get(name)!r} here, {there.get(name)!r} there"
        for name in sorted(here.keys() | there.keys())
        if here.get(name) != there.get(name)
    )


def _flat(fields: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
