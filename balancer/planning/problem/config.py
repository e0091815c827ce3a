"""The types of planning: configuration and window in, global batches out.

Planning is a pure function of these types: the same configuration and the same costs give the
same plan on every machine, whatever arrived when.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import msgspec

from ..kernels.arrays import Int64
from .balance import DEFAULTS, Balance, budgets_of
from .costs import check_resources
from .layout import own_layout
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
    check_all_or_none,
    check_counts,
    check_limits,
    check_option,
    check_padded,
    check_timed,
    check_waits,
    dispatched_of,
    is_positive,
    padded_of,
)
from .pipeline_costs import read_costs_of
from .shapes import Sizing, check_columns

# Raised whenever some configuration is planned otherwise than before: a ledger of another version
# is refused, since what it counts would be other samples.
PLANNER_VERSION = 4

# (loads (groups, resources), assigned (ranks, accumulate)) -> assigned, in the order of execution.
OrderRanks = Callable[[Int64, Int64], Int64]
LastStep = Literal["whole", "even", "short"]
# Those that are the same here as in Balance.
_OPTIONS = (
    "accumulate", "grouping", "partition", "ordering", "mode", "seed", "oversize", "all_or_none",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlanConfig:
    """A Balance resolved for given ranks and resources; a wrong value raises ValueError.

    ranks: data-parallel ranks. resources and budgets: the costs' columns, and the most of each
    that a microbatch may hold (None: no limit). batch_size: samples of a microbatch, for the
    grouping "fixed" only. accumulate_from: where accumulate="auto" starts; all ranks
    raise it together, step by step. samples_per_step also sizes the window that is planned at
    once. empty_microbatches: False where a loop cannot take a microbatch without samples (torch's
    default_collate cannot): a last step with fewer samples than microbatches is left out.
    spares: in other steps a microbatch for which there is no sample then gets one that weighs
    nothing; without them such a step leaves samples out.
    padded: the resources of which a microbatch costs count x largest; none where work is "packed".
    last_step: what an epoch's last step does that has too few samples: "whole" has as many
    microbatches as others, some of them empty; "even" leaves out what does not divide, so that all
    microbatches have as many samples; "short" leaves none out, and sizes differ by one. Both make
    fewer microbatches rather than empty ones. pipeline: the text of the PipelineCosts that ordering
    compares orders by, "" for ordering "given". dispatched: resources that others balance, the
    encoder's where images travel. multiples, buckets: what samples and microbatches of a resource
    are padded to (shapes.Shapes). layout: a user's Layout, as text, "" for another; it decides no
    plan, but what microbatches are: ranks must have the same, and who goes on inside a step.
    Everything else as in Balance.

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

    def __post_init__(self) -> None:
        if self.grouping == "auto":
            raise ValueError("grouping 'auto' finds costs in a data set: give it to DataLoader")
        for name in ("ranks", "samples_per_step", "accumulate_from"):
            _check_positive(name, getattr(self, name))
        for name in _OPTIONS:
            check_option(name, getattr(self, name))
        check_resources(self.resources)
        _check_budgets(self)
        check_limits(self.grouping, self.mode, self.limited, self.fixes_step_size)
        check_waits(self.waits, self.partition)
        _check_padded(self)
        check_all_or_none(
            self.all_or_none, self.grouping, self.partition, self.ordering, bool(self.padded),
            self.dispatched, self.resources,
        )  # fmt: skip
        check_columns(self.resources, self.multiples, self.buckets)
        _check_batch_size(self)
        _check_step_size(self)

    @classmethod
    def from_balance(
        cls,
        balance: Balance,
        *,
        ranks: int,
        resources: tuple[str, ...],
        samples_per_step: int,
        batch_size: int | None = None,
        drop_last: bool = False,
        accumulate_from: int = 1,
        empty_microbatches: bool = True,
    ) -> "PlanConfig":
        """Return the configuration of a Balance whose samples have these resources.

        Reads the cost profile that `balance.pipeline` names. Raises ValueError for budgets of other
        resources, a profile that does not fit, and for what PlanConfig refuses.
        """
        return cls(
            ranks=ranks,
            samples_per_step=samples_per_step,
            resources=resources,
            budgets=budgets_of(balance, resources),
            **{name: getattr(balance, name) for name in _OPTIONS},
            waits=balance.resolved_waits,
            drop_last=drop_last,
            batch_size=batch_size,
            accumulate_from=accumulate_from,
            empty_microbatches=empty_microbatches,
            padded=padded_of(balance.resolved_work, resources),
            counts=balance.counts,
            time_ns=tuple(sorted((balance.time_ns or {}).items())),
            pipeline=read_costs_of(balance.pipeline) if balance.pipeline else "",
            dispatched=dispatched_of(balance.dispatch, resources),
            multiples=tuple(sorted(balance.shapes.multiples.items())),
            buckets=tuple(sorted(balance.shapes.buckets.items())),
            layout=own_layout(balance.layout),
        )

    @property
    def limited(self) -> bool:
        """True if any resource has a budget."""
        return any(budget is not None for budget in self.budgets)

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
            buckets=tuple(each for each in self.buckets if each[0] in names),
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
            tuple((self.resources.index(name), each) for name, each in self.multiples),
            tuple((self.resources.index(name), each) for name, each in self.buckets),
        )

    @property
    def balanced_columns(self) -> tuple[int, ...]:
        """The numbers of the resources that are work: all with a budget, or that ranks wait for.

        All resources if nothing else is known of samples.

        >>> PlanConfig(1, 8, 1, ("tokens", "label_tokens"), (None, None)).balanced_columns
        (0,)
        """
        each = enumerate(zip(self.resources, self.budgets, strict=True))
        others = (*NO_WORK, *self.dispatched)
        work = tuple(k for k, (name, budget) in each if budget is not None or name not in others)
        return work or tuple(range(len(self.resources)))

    @property
    def least_microbatches(self) -> int:
        """The fewest microbatches of a step, of all ranks together."""
        each = self.accumulate_from if self.accumulate == "auto" else self.accumulate
        return self.ranks * each

    def keeps_last(self, samples: int) -> bool:
        """Return whether an epoch's last step, of `samples` samples, is planned: else left out."""
        least = 1 if self.empty_microbatches else self.least_microbatches
        if self.last_step != "whole":
            least = self.ranks if self.last_step == "even" else 1
        return not self.drop_last and samples >= least

    def steps_of(self, samples: int) -> int:
        """Return the steps of an epoch of `samples` samples, in mode "exact".

        >>> PlanConfig(4, 4, 1, ("n",), (None,), empty_microbatches=False).steps_of(9)
        2
        """
        whole, rest = divmod(samples, self.samples_per_step)
        return whole + self.keeps_last(rest)

    def digest(self) -> str:
        """Return 32 hex digits that change whenever a plan could."""
        # Where an option says nothing the digest is that of ledgers that do not know it.
        said = {
            "empty_microbatches": not self.empty_microbatches,
            "padded": bool(self.padded),
            "time_ns": bool(self.padded or self.time_ns),
            "counts": self.counts is not None,
            "last_step": self.last_step != "whole",
            "pipeline": bool(self.pipeline),
            "dispatched": bool(self.dispatched),
            "all_or_none": self.all_or_none is not None,
            "spares": self.spares,
            "multiples": bool(self.multiples),
            "buckets": bool(self.buckets),
            "layout": bool(self.layout),
        }
        options = {name: value for name, value in asdict(self).items() if said.get(name, True)}
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


def _check_positive(name: str, value: object, more: str = "") -> None:
    if not is_positive(value):
        raise ValueError(f"{name} is {value!r}, allowed is a positive integer{more}")


def _check_budgets(config: PlanConfig) -> None:
    if len(config.budgets) != len(config.resources):
        raise ValueError(
            f"{len(config.budgets)} budgets for {len(config.resources)} resources: "
            "give one each, None for no limit"
        )
    for name, budget in zip(config.resources, config.budgets, strict=True):
        if budget is not None:
            _check_positive(f"budget of {name}", budget, " or None")


def _check_batch_size(config: PlanConfig) -> None:
    if config.grouping != "fixed":
        if config.batch_size is not None:
            raise ValueError(f"batch_size belongs to grouping 'fixed', not to {config.grouping!r}")
        return
    _check_positive("batch_size of grouping 'fixed'", config.batch_size)
    if config.accumulate == "auto" or config.mode == "epoch":
        return
    wanted = config.ranks * config.accumulate * (config.batch_size or 0)
    if config.samples_per_step != wanted:
        raise ValueError(
            f"samples_per_step is {config.samples_per_step}, but {config.ranks} ranks x "
            f"{config.accumulate} microbatches x {config.batch_size} samples are {wanted}"
        )


def _check_padded(config: PlanConfig) -> None:
    check_padded(config.grouping, config.mode, bool(config.padded))
    check_timed(config.grouping, config.mode, timed=bool(config.time_ns))
    check_counts(config.counts, config.grouping, config.mode, config.oversize, config.limited)
    names = (*config.resources, *((ATTENTION_PAIRS,) if LLM in config.resources else ()))
    for name, value in config.time_ns:
        _check_positive(f"time_ns of {name}", value)
        if name not in names:
            raise ValueError(f"time_ns names {name}, but samples cost {', '.join(names)}")
    if unknown := [name for name in config.padded if name not in config.resources]:
        raise ValueError(
            f"padded names {', '.join(unknown)}, but samples cost {', '.join(config.resources)}"
        )


def _check_step_size(config: PlanConfig) -> None:
    """Refuse steps whose every rank cannot have a sample in each microbatch, where all must."""
    least = config.least_microbatches
    if config.mode == "epoch" or config.empty_microbatches or config.samples_per_step >= least:
        return
    raise ValueError(
        f"samples_per_step is {config.samples_per_step}, but {config.ranks} ranks x "
        f"{least // config.ranks} microbatches need at least {least}: collate_fn cannot make a "
        "batch of no samples; give larger steps, layout 'padded', or a collate_fn that can"
    )
