"""The types of planning: configuration and window in, global batches out.

Planning is a pure function of these types: the same configuration and the same costs give the
same plan on every machine, whatever arrived when.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import msgspec

from ..kernels.arrays import Int64
from .balance import DEFAULTS, Balance, list_budgets
from .layout import format_rules
from .options import (
    ATTENTION_PAIRS,
    LLM,
    NO_WORK,
    Accumulate,
    Counts,
    GroupingName,
    Mode,
    OrderingName,
    Oversize,
    PartitionName,
    Waits,
    check_option,
    contradictions,
    is_positive,
    list_dispatched,
    list_padded,
)
from .shapes import Sizing, against_columns
from .values import as_pipeline

# Raised whenever some configuration is planned otherwise than before: a ledger of another version
# is refused, since what it counts would be other samples.
PLANNER_VERSION = 4

# (loads (groups, resources), assigned (ranks, accumulate)) -> assigned, in the order of execution.
OrderRanks = Callable[[Int64, Int64], Int64]
LastStep = Literal["whole", "even", "short"]
# Those that are the same here as in Balance.
_OPTIONS = (
    "accumulate", "grouping", "partition", "ordering", "mode", "seed", "oversize", "all_or_none",
    "counts", "bucket_by",
)  # fmt: skip
# A digest has these where they say something: it is that of ledgers that do not know them.
_SAID = {
    "empty_microbatches", "padded", "time_ns", "counts", "last_step", "pipeline", "dispatched",
    "all_or_none", "spares", "multiples", "buckets", "layout", "bucket_by",
}  # fmt: skip
MOST_RESOURCES = 32


@dataclass(frozen=True, slots=True)
class PlanConfig:
    """A Balance resolved for given ranks and resources; a wrong value raises ValueError.

    Args:
        ranks: Data-parallel ranks.
        samples_per_step: As in Balance; it also sizes the window that is planned at once.
        resources, budgets: The costs' columns, and the most of each that a microbatch may hold
            (None: no limit).
        grouping, partition, mode, seed, oversize, waits, counts, accumulate: As in Balance.
        ordering, time_ns, all_or_none, bucket_by: As in its values.
        batch_size: Samples of a microbatch, for grouping "fixed" only.
        accumulate_from: Where accumulate "auto" starts; all ranks raise it together, step by step.
        drop_last: Whether a last step that is not full is left out.
        empty_microbatches: False where a loop cannot take a microbatch without samples, as torch's
            default_collate: a last step with fewer samples than microbatches is left out.
        spares: In other steps a microbatch for which there is no sample then gets one that weighs
            nothing; without them such a step leaves samples out.
        padded: Resources of which a microbatch costs count x largest; none where work is "packed".
        last_step: What an epoch's last step does that has too few samples: "whole" has as many
            microbatches as others, some of them empty; "even" leaves out what does not divide;
            "short" leaves none out, and sizes differ by one. Both make fewer microbatches rather
            than empty ones.
        pipeline: Text of the PipelineCosts that ordering compares orders by, "" for "given".
        dispatched: Resources that others balance, the encoder's where images travel.
        multiples, buckets: What samples and microbatches are padded to (shapes.Padding).
        layout: A user's Layout as text, "" for another; it decides no plan, but what microbatches
            are: ranks must have the same.

    >>> PlanConfig(ranks=2, samples_per_step=8, accumulate=1, resources=("tiles",), budgets=(9,)
    ... ).digest() == PlanConfig(2, 8, 1, ("tiles",), (9,)).digest()
    True
    """

    ranks: int
    samples_per_step: int
    accumulate: Accumulate
    resources: tuple[str, ...]
    budgets: tuple[int | None, ...]
    grouping: GroupingName = DEFAULTS.grouping
    partition: PartitionName = DEFAULTS.partition
    ordering: OrderingName = DEFAULTS.ordering
    mode: Mode = DEFAULTS.mode
    seed: int = DEFAULTS.seed
    drop_last: bool = False
    oversize: Oversize = DEFAULTS.oversize
    batch_size: int | None = None
    accumulate_from: int = 1
    empty_microbatches: bool = True
    waits: Waits = DEFAULTS.resolved_waits
    padded: tuple[str, ...] = ()
    counts: Counts | None = None
    time_ns: tuple[tuple[str, int], ...] = ()
    last_step: LastStep = "whole"
    pipeline: str = ""
    dispatched: tuple[str, ...] = ()
    all_or_none: str | None = None
    spares: bool = False
    multiples: tuple[tuple[str, int], ...] = ()
    buckets: tuple[tuple[str, tuple[int, ...]], ...] = ()
    layout: str = ""
    bucket_by: str | None = None

    def __post_init__(self) -> None:
        for name in _OPTIONS:
            check_option(name, getattr(self, name))
        for contradiction in self._contradictions():
            raise ValueError(contradiction)

    @classmethod
    def from_balance(
        cls, balance: Balance, *, ranks: int, resources: tuple[str, ...],
        samples_per_step: int | None = None, batch_size: int | None = None, drop_last: bool = False,
        accumulate_from: int = 1, empty_microbatches: bool = True,
    ) -> "PlanConfig":  # fmt: skip
        """Return the configuration of a Balance whose samples have these resources.

        batch_size: for grouping "fixed". samples_per_step: by default the balance's, else
        batch_size for every rank and microbatch. Reads the cost profile that `balance.pipeline`
        names. Raises ValueError for budgets of other resources, a profile that does not fit, and
        for what PlanConfig refuses.
        """
        rows = accumulate_from if balance.accumulate == "auto" else balance.accumulate
        size = samples_per_step or balance.samples_per_step or ranks * rows * (batch_size or 1)
        if balance.bucket_by not in (None, *resources):
            raise ValueError(
                f"bucket_by is {balance.bucket_by!r}, but samples cost {', '.join(resources)}: let "
                f"cost= or probe() give {balance.bucket_by}, a number for each shape"
            )
        padding, pipeline = balance.padding, ""
        if (order := as_pipeline(balance.pipeline)) is not None:
            from .pipeline_costs import read_costs  # here: most plans have no pipeline

            pipeline = read_costs(order.profile)
        return cls(
            ranks=ranks, samples_per_step=size, resources=resources,
            budgets=list_budgets(balance, resources),
            **{name: getattr(balance, name) for name in _OPTIONS}, waits=balance.resolved_waits,
            drop_last=drop_last, batch_size=batch_size if balance.grouping == "fixed" else None,
            accumulate_from=accumulate_from, empty_microbatches=empty_microbatches,
            padded=list_padded(balance.resolved_work, resources),
            time_ns=tuple(sorted((balance.time_ns or {}).items())),
            pipeline=pipeline,
            dispatched=list_dispatched(balance.dispatch, resources),
            multiples=tuple(sorted(padding.multiples.items())),
            buckets=tuple(sorted(padding.buckets.items())), layout=format_rules(balance.layout),
        )  # fmt: skip

    def _contradictions(self) -> Iterator[str]:
        if self.grouping == "auto":
            yield "grouping 'auto' finds costs in a data set: give it to DataLoader"
        resources, count = self.resources, len(self.resources)
        if not 1 <= count <= MOST_RESOURCES or len(set(resources)) < count:
            yield (
                f"resources are {count} names, {len(set(resources))} different: name one, such as "
                f"tokens, or at most {MOST_RESOURCES}, each once"
            )
        if len(self.budgets) != count:
            yield (
                f"{len(self.budgets)} budgets for {count} resources: give one each, None for no "
                "limit"
            )
        numbers = {name: getattr(self, name) for name in ("ranks", "samples_per_step")}
        numbers["accumulate_from"] = self.accumulate_from
        budgets = zip(resources, self.budgets, strict=True)
        numbers |= {f"budget of {name}": most for name, most in budgets if most is not None}
        numbers |= {f"time_ns of {name}": time for name, time in self.time_ns}
        if self.grouping == "fixed":
            numbers["batch_size of grouping 'fixed'"] = self.batch_size
        for name, value in numbers.items():
            if not is_positive(value):
                yield f"{name} is {value!r}, allowed is a positive integer"
        yield from contradictions(self)
        timed = (*resources, ATTENTION_PAIRS) if LLM in resources else resources
        for option, names, allowed in (
            ("time_ns", [name for name, _ in self.time_ns], timed),
            ("padded", self.padded, resources),
            ("all_or_none", [self.all_or_none] if self.all_or_none else [], resources),
        ):
            if unknown := [name for name in names if name not in allowed]:
                yield f"{option} names {unknown[0]}, but samples cost {', '.join(allowed)}"
        if self.bucket_by in [resources[column] for column in self.balanced_columns]:
            yield (
                f"bucket_by is {self.bucket_by!r}, which is no work, and samples cost nothing "
                "else: let them cost 1 of something, such as images, or what they take"
            )
        yield from against_columns(resources, self.multiples, self.buckets)
        yield from self._against_step_size()

    def _against_step_size(self) -> Iterator[str]:
        size, rows = self.samples_per_step, self.first_accumulate
        needed = self.least_microbatches * (self.batch_size or 0)
        is_counted = self.grouping == "fixed" and self.accumulate != "auto" and self.mode != "epoch"
        if is_counted and size != needed:
            yield (
                f"samples_per_step is {size}, but {self.ranks} ranks x {rows} microbatches x "
                f"{self.batch_size} samples are {needed}"
            )
        # Where no rank can have an empty microbatch, each needs a sample.
        least = self.least_microbatches
        if self.mode != "epoch" and not self.empty_microbatches and size < least:
            yield (
                f"samples_per_step is {size}, but {self.ranks} ranks x {rows} microbatches need at "
                f"least {least}: collate_fn cannot make a batch of no samples; give larger steps, "
                "layout 'padded', or a collate_fn that can"
            )

    @property
    def limited(self) -> bool:
        """True if any resource has a budget."""
        return any(budget is not None for budget in self.budgets)

    @property
    def is_padded(self) -> bool:
        """True if microbatches cost count x largest of a resource."""
        return bool(self.padded)

    @property
    def equal_counts(self) -> bool:
        """True if every microbatch is given as many samples as others by grouping "balanced"."""
        return self.counts == "equal" and self.grouping != "fixed"

    @property
    def plans_rows(self) -> bool:
        """True if grouping decides which microbatches run side by side: for padded work."""
        return bool(self.padded) and self.grouping != "fixed"

    @property
    def fixes_step_size(self) -> bool:
        """True if the number of samples decides what a step holds, and budgets only limit it."""
        return self.plans_rows or self.equal_counts

    def only(self, columns: tuple[int, ...]) -> "PlanConfig":
        """Return the configuration with some of the resources, by their numbers.

        Without all_or_none, and for samples that are padded already.
        """
        names = tuple(self.resources[k] for k in columns)
        return replace(
            self,
            resources=names,
            budgets=tuple(self.budgets[k] for k in columns),
            padded=tuple(name for name in self.padded if name in names),
            all_or_none=None,
            multiples=(),
            buckets=tuple((name, sizes) for name, sizes in self.buckets if name in names),
            time_ns=tuple(
                (name, time) for name, time in self.time_ns if name in (*names, ATTENTION_PAIRS)
            ),
        )

    @property
    def padded_columns(self) -> tuple[int, ...]:
        """The numbers of the resources of which a microbatch costs count x largest."""
        return tuple(k for k, name in enumerate(self.resources) if name in self.padded)

    @property
    def sizing(self) -> Sizing:
        """How the costs of a microbatch follow from its samples'."""
        return Sizing(
            self.padded_columns,
            tuple((self.resources.index(name), size) for name, size in self.multiples),
            tuple((self.resources.index(name), size) for name, size in self.buckets),
            tuple(k for k, name in enumerate(self.resources) if name == self.bucket_by),
        )

    @property
    def balanced_columns(self) -> tuple[int, ...]:
        """The numbers of the resources that are work: all with a budget, or that ranks wait for.

        All resources if nothing else is known of samples.

        >>> PlanConfig(1, 8, 1, ("tokens", "label_tokens"), (None, None)).balanced_columns
        (0,)
        """
        columns = enumerate(zip(self.resources, self.budgets, strict=True))
        no_work = (*NO_WORK, *self.dispatched, self.bucket_by)
        work = tuple(
            k for k, (name, budget) in columns if budget is not None or name not in no_work
        )
        return work or tuple(range(len(self.resources)))

    @property
    def least_microbatches(self) -> int:
        """The fewest microbatches of a step, of all ranks together."""
        return self.ranks * self.first_accumulate

    def keeps_last(self, samples: int) -> bool:
        """Return whether an epoch's last step, of `samples` samples, is planned: else left out."""
        least = 1 if self.empty_microbatches else self.least_microbatches
        if self.last_step != "whole":
            least = self.ranks if self.last_step == "even" else 1
        return not self.drop_last and samples >= least

    def count_steps(self, samples: int) -> int:
        """Return the steps of an epoch of `samples` samples, in mode "exact".

        >>> PlanConfig(4, 4, 1, ("n",), (None,), empty_microbatches=False).count_steps(9)
        2
        """
        whole, remainder = divmod(samples, self.samples_per_step)
        return whole + self.keeps_last(remainder)

    @property
    def first_accumulate(self) -> int:
        """The microbatches of a rank and step, with "auto" the fewest."""
        return self.accumulate_from if self.accumulate == "auto" else self.accumulate

    def last_rows(self, samples: int) -> int:
        """Return the microbatches of each rank in an epoch's last step of `samples` samples."""
        rows = self.first_accumulate
        return rows if self.last_step == "whole" else max(1, min(rows, samples // self.ranks))

    def last_kept(self, samples: int) -> int:
        """Return how many of the `samples` samples of an epoch's last step are in it.

        >>> PlanConfig(4, 64, 4, ("n",), (None,), last_step="even").last_kept(23)
        16
        """
        if not self.keeps_last(samples):
            return 0
        whole = self.ranks * self.last_rows(samples)
        return samples - samples % whole if self.last_step == "even" else samples

    def count_microbatches(self, samples: int) -> int:
        """Return a rank's microbatches in an epoch of `samples` samples, in mode "exact".

        >>> PlanConfig(4, 64, 4, ("n",), (None,), last_step="even").count_microbatches(64 + 7)
        5
        """
        whole, remainder = divmod(samples, self.samples_per_step)
        last = self.last_rows(remainder) if self.keeps_last(remainder) else 0
        return whole * self.first_accumulate + last

    @property
    def step_digest(self) -> str:
        """32 hex digits that change whenever a step's microbatches could.

        Under bucket_by they depend on how many there are, not on how many ranks these are for.
        """
        if self.bucket_by is None:
            return self.digest()
        rows = self.least_microbatches
        return replace(self, ranks=1, accumulate=rows, accumulate_from=1).digest()

    def digest(self) -> str:
        """Return 32 hex digits that change whenever a plan could."""
        options = {}
        for field in fields(self):
            value = getattr(self, field.name)
            is_said = value != field.default or (field.name == "time_ns" and self.is_padded)
            if is_said or field.name not in _SAID:
                options[field.name] = value
        text = json.dumps([PLANNER_VERSION, options], sort_keys=True)
        import hashlib  # here: it loads OpenSSL, which would delay each start

        return hashlib.sha256(text.encode()).hexdigest()[:32]


class Window(msgspec.Struct, frozen=True):
    """Samples planned together: ordinals start, start + 1, ... with costs (n, resources).

    step is the number of the first step that the window makes; last says that no samples follow.
    """

    epoch: int
    step: int
    start: int
    costs: Int64
    last: bool

    def costs_digest(self) -> str:
        """Return 16 hex digits: with the PlanConfig's digest they decide what the steps are."""
        import hashlib  # here: see PlanConfig.digest

        text = f"{self.costs.shape} ".encode() + self.costs.astype("<i8").tobytes()
        return hashlib.blake2b(text, digest_size=8).hexdigest()


class Microbatch(msgspec.Struct, frozen=True):
    """The samples that one rank processes in one pass; none at all is a pass of weight zero."""

    ordinals: tuple[int, ...]


class GlobalBatch(msgspec.Struct, frozen=True):
    """One optimizer step: for every rank its microbatches, the same number on all."""

    step: int
    ranks: tuple[tuple[Microbatch, ...], ...]


class Planned(msgspec.Struct, frozen=True):
    """Steps in order, how many of the window's ordinals they used up, and those over budget.

    The next window starts at start + consumed. oversize lists ordinals, ascending; where they are
    refused they are in no batch, and named with the first one. left_out: how many others are in
    none, as a microbatch would be empty; not those that drop_last drops. Where there is no batch to
    name the refused ones with, they count as well.
    """

    batches: Sequence[GlobalBatch]
    consumed: int
    oversize: tuple[int, ...]
    refused: bool = False
    left_out: int = 0
