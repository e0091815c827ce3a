"""`Balance`: how samples are balanced, as one value that can be checked, printed and saved.

Each option's default is defined here and its values in options.py, nowhere else. DataLoader and
BalancedBatchSampler take a Balance; PlanConfig is its resolved form, with ranks and resources.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any

from ...near_names import explain_arguments, near_name
from .frozen_mapping import FrozenMapping, expression
from .layout import Layout, LayoutName, as_layout
from .options import (
    ENCODER,
    NAMES,
    Accumulate,
    Counts,
    Dispatch,
    GroupingName,
    Mode,
    OrderingName,
    Oversize,
    PartitionName,
    Waits,
    WorkName,
    check_option,
    contradictions,
)
from .shapes import Padding, against_padding, resolve_padding
from .values import (
    DEFAULT_IMAGES,
    DEFAULT_SHAPES,
    DEFAULT_WORK,
    Images,
    PipelineOrder,
    Shapes,
    Work,
    as_images,
    as_pipeline,
    as_shapes,
    as_work,
)

VERSION = 2
# The arguments that are values, and those of them that have short forms.
VALUES: Mapping[str, type[Any]] = {
    "layout": Layout, "pipeline": PipelineOrder, "work": Work, "shapes": Shapes, "images": Images,
}  # fmt: skip
_READ: Mapping[str, Any] = {
    "pipeline": as_pipeline,
    "work": as_work,
    "shapes": as_shapes,
    "images": as_images,
}


@explain_arguments(lambda: VALUES)
@dataclass(frozen=True, slots=True, repr=False)
class Balance:
    """The rules by which samples become microbatches and steps; wrong values raise ValueError.

    docs/reference/balance.md says which go together.

    Args:
        grouping: "balanced" or "isf" fill budgets; "fixed" puts batch_size samples into each
            microbatch, in their order; "auto" is "balanced" with costs and work that DataLoader
            finds, and steps of ranks x accumulate x batch_size samples; default "balanced".
        budgets: The most of each resource in a microbatch, {"tokens": 4096}; default: no limits.
        samples_per_step: Samples of a global batch; in modes "window" and "epoch" the number
            expected; default: from batch_size (DataLoader), or from budgets (BalancedBatchSampler).
        accumulate: Microbatches per rank and step; "auto": as many as the step's budgets need;
            default 1.
        mode: "exact": samples_per_step samples; "window", "epoch": what microbatches filled from a
            window of samples, or from the whole epoch, hold; default "exact".
        partition: Of microbatches to ranks, "multi_resource", "greedy" or "given"; default
            "multi_resource", which evens out every resource.
        waits: When ranks meet: each "microbatch" (FSDP), or once a "step" (DDP with no_sync);
            default: as a framework's adapter says, else each microbatch.
        counts: "equal" numbers of samples, for loops that weigh microbatches alike; "free", for
            loops that weigh with StepInfo; default: equal with "auto", else free.
        oversize: A sample over budget gets a microbatch ("alone"), is left out ("refuse"), or ends
            the run ("error"); default "alone".
        seed: For the shuffle and every other random choice; default 0.
        label_tokens: The resource that counts tokens with a label; "batch": they are counted in
            collate_fn's batches, a step's before its first is handed out; default "label_tokens",
            or "batch" where collate_fn makes labels that no sample has.
        layout: How a batch is made: "torch" (by collate_fn), "padded", "packed", or a Layout;
            default "torch".
        pipeline: The cost profile of the pipeline that a rank's microbatches are ordered for, a
            path or a PipelineOrder; default: in the order given.
        work: "packed", "padded", nanoseconds of each resource, or both in a Work; default: padded
            with layout "padded".
        shapes: What samples and microbatches are padded to: a multiple of tokens such as 16,
            "fixed", a multiple of each resource, or Shapes; default: to nothing.
        images: How images meet ranks, as Images; default: each is where its sample is.

    >>> balance = Balance(budgets={"tiles": 9, "tokens": 4096}, accumulate="auto")
    >>> balance
    Balance(budgets={'tiles': 9, 'tokens': 4096}, accumulate='auto')
    >>> Balance.from_json(balance.to_json()) == balance
    True
    """

    grouping: GroupingName = "balanced"
    budgets: Mapping[str, int] = FrozenMapping[int]({})
    samples_per_step: int | None = None
    accumulate: Accumulate = 1
    mode: Mode = "exact"
    partition: PartitionName = "multi_resource"
    waits: Waits | None = None
    counts: Counts | None = None
    oversize: Oversize = "alone"
    seed: int = 0
    label_tokens: str | None = None
    layout: LayoutName | Layout = "torch"
    pipeline: PipelineOrder | str | PathLike[str] | None = None
    work: Work | WorkName | Mapping[str, int] = DEFAULT_WORK
    shapes: Shapes | Mapping[str, int] | int | str = DEFAULT_SHAPES
    images: Images = DEFAULT_IMAGES

    def __post_init__(self) -> None:
        for name, read_value in _READ.items():
            object.__setattr__(self, name, read_value(getattr(self, name)))
        for name in (field.name for field in fields(self) if field.name not in _READ):
            check_option(name, getattr(self, name))
        self._set_budgets()
        for contradiction in self._contradictions():
            raise ValueError(contradiction)

    @property
    def resolved_waits(self) -> Waits:
        """When ranks wait, as it is planned."""
        return self.waits or "microbatch"

    @property
    def resolved_work(self) -> WorkName:
        """The work that is planned: `work`, else what the layout makes of it."""
        sums = self.grouping == "isf" or self.mode == "epoch" or self.bucket_by is not None
        layout = as_layout(self.layout)
        pads = layout is not None and layout.pads
        return as_work(self.work).kind or ("padded" if pads and not sums else "packed")

    @property
    def time_ns(self) -> Mapping[str, int] | None:
        """Nanoseconds of each resource's unit; None where only means are known."""
        return as_work(self.work).time_ns

    @property
    def padding(self) -> Padding:
        """How samples and microbatches are padded, by resource."""
        return resolve_padding(as_shapes(self.shapes), self.budgets)

    @property
    def bucket_by(self) -> str | None:
        """The resource of which all samples of a microbatch have one value, or none."""
        return as_shapes(self.shapes).bucket_by

    @property
    def dispatch(self) -> Dispatch:
        """What travels to other ranks: nothing of "samples", or their "images"."""
        return as_images(self.images).dispatch

    @property
    def all_or_none(self) -> str | None:
        """The resource that all ranks have at a microbatch index, or none."""
        return as_images(self.images).all_or_none

    @property
    def ordering(self) -> OrderingName:
        """The ordering of a rank's microbatches: "given" without a pipeline."""
        order = as_pipeline(self.pipeline)
        return "given" if order is None else order.ordering

    @property
    def shift_labels(self) -> bool:
        """Whether the loss compares position i with label i + 1."""
        return not isinstance(self.layout, Layout) or self.layout.shift_labels

    @property
    def limited(self) -> bool:
        """True if any resource has a budget."""
        return bool(self.budgets)

    @property
    def is_padded(self) -> bool:
        """True if microbatches cost count x largest."""
        return self.resolved_work == "padded"

    @property
    def dispatched(self) -> tuple[str, ...]:
        """The resources that travel, whatever samples cost."""
        return ENCODER if self.dispatch == "images" else ()

    def _contradictions(self) -> Iterator[str]:
        yield from against_padding(self.padding, self)
        if limited := [name for name in self.dispatched if name in self.budgets]:
            yield (
                f"images: dispatch is 'images', so what a rank encodes of {limited[0]} does not "
                f"follow from its microbatches: leave {limited[0]} out of budgets, or use dispatch "
                "'samples'"
            )
        yield from contradictions(self)
        if self.grouping == "auto":
            yield from self._against_auto()

    def _against_auto(self) -> Iterator[str]:
        """Yield the options that contradict what grouping "auto" finds or keeps."""
        if self.samples_per_step is not None or self.accumulate == "auto":
            yield (
                "grouping 'auto' keeps steps of ranks x accumulate x batch_size samples: leave "
                "samples_per_step, give accumulate as a number, or use grouping 'balanced'"
            )
        if self.mode == "epoch":
            yield "grouping 'auto' plans in mode 'exact' or 'window', not in 'epoch'"
        for name in ("partition", "ordering", "dispatch"):
            if getattr(self, name) != getattr(DEFAULTS, name):
                yield (
                    f"{name} is {getattr(self, name)!r}, and grouping 'auto' chooses it: leave it, "
                    "or use grouping 'balanced'"
                )

    def _set_budgets(self) -> None:
        """Make the largest bucket of a resource its budget where none is given."""
        buckets = as_shapes(self.shapes).buckets
        lengths = {} if isinstance(buckets, int) else buckets
        largest = {name: sizes[-1] for name, sizes in lengths.items()}
        object.__setattr__(self, "budgets", FrozenMapping({**largest, **self.budgets}))

    __repr__ = expression

    def to_json(self) -> str:
        """Return a JSON object with every argument and "version", for `from_json`."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=2, default=dict)

    @classmethod
    def from_json(cls, text: str) -> "Balance":
        """Return the Balance in a JSON object; arguments that it does not name have their default.

        Raises ValueError for text that is no JSON object, another version, an unknown argument or a
        value that is not allowed.
        """
        try:
            options = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"not JSON: {error}") from None
        if not isinstance(options, dict):
            raise ValueError(f"needed is a JSON object, got {type(options).__name__}")
        version = options.pop("version", None)
        if type(version) is not int or version != VERSION:
            raise ValueError(f"version is {version!r}, allowed is {VERSION}")
        _refuse_unknown(options, cls)
        for name, record in VALUES.items():
            if isinstance(options.get(name), dict):
                _refuse_unknown(options[name], record)
                try:
                    options[name] = record(**options[name])
                except TypeError as error:  # a field without default is missing
                    raise ValueError(f"{name}: {error}") from None
        return cls(**options)

    def save(self, path: str | Path) -> None:
        """Write `to_json()` to a file."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Balance":
        """Return the Balance in a file: one that `save` or `counterpoise analyze` wrote.

        Of a job's plan (`counterpoise plan job`) it is the section "balance", and the costs that
        its ordering reads are the plan's. Raises ValueError, with the file's name, for whatever
        `from_json` refuses.
        """
        from .pipeline_costs import job_section  # here: most rules are in no file

        try:
            text = Path(path).read_text(encoding="utf-8")
            section = job_section(text)
            if section is None:
                return cls.from_json(text)
            if section.get("pipeline"):
                section["pipeline"] = {**section["pipeline"], "profile": str(path)}
            return cls.from_json(json.dumps(section))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _refuse_unknown(options: Mapping[str, Any], record: type[Any]) -> None:
    """Raise ValueError for a name that a record of JSON values has no field of."""
    names = [field.name for field in fields(record)]
    if unknown := sorted(options.keys() - {*names}):
        name = unknown[0]
        raise ValueError(
            f"{name} is {options[name]!r}, but {record.__name__} has no {name}; it has "
            f"{', '.join(names)}{near_name(name, names)}"
        )


def as_balance(balance: "Balance | str") -> Balance:
    """Return balance; a string is shorthand for Balance(grouping=balance).

    >>> as_balance("isf")
    Balance(grouping='isf')
    """
    if isinstance(balance, Balance):
        return balance
    if isinstance(balance, str):
        options: dict[str, Any] = {"grouping": balance}
        return Balance(**options)
    more = f"; budgets go into Balance(budgets={balance!r})" if isinstance(balance, Mapping) else ""
    raise TypeError(
        f"balance is {balance!r}, allowed are a Balance or the name of a grouping: "
        f"{', '.join(map(repr, NAMES['grouping']))}{more}"
    )


def list_budgets(balance: Balance, resources: tuple[str, ...]) -> tuple[int | None, ...]:
    """Return a balance's budget for each resource, None for no limit; ValueError for others.

    >>> list_budgets(Balance(budgets={"tokens": 4096}), ("tiles", "tokens"))
    (None, 4096)
    """
    if unknown := [name for name in balance.budgets if name not in resources]:
        raise ValueError(
            f"budgets name {', '.join(unknown)}, but samples cost {', '.join(resources)}: give "
            f"cost={{{unknown[0]!r}: [...]}}, or a function of a sample, or budgets for these"
        )
    return tuple(balance.budgets.get(name) for name in resources)


# The defaults of every option, for PlanConfig and the signatures that repeat one.
DEFAULTS = Balance()
