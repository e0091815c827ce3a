"""Balanced batches for torch's own DataLoader: the plan without our workers.

    sampler = BalancedBatchSampler({"tiles": tiles, "tokens": tokens},
                                   Balance(budgets={"tiles": 9, "tokens": 4096},
                                           accumulate="auto"), accumulate_from=16)
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler, num_workers=8)

Every rank plans the same epoch by itself, from the same costs and seed, and takes its own share.
Ranks do not meet: `state_dict()` before the first batch is the same on all, unless they differ.
"""

import logging
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from ..balancer.near_names import explain_arguments
from ..balancer.planning.grouping.balanced import balanced
from ..balancer.planning.kernels.arrays import Int64
from ..balancer.planning.planner import make_planner
from ..balancer.planning.problem.balance import DEFAULTS, Balance, as_balance, list_budgets
from ..balancer.planning.problem.config import PLANNER_VERSION, PlanConfig
from ..balancer.planning.problem.costs import check_costs
from ..balancer.planning.problem.layout import BASES, as_layout
from ..balancer.planning.problem.options import GroupingName
from ..balancer.planning.problem.shapes import Sizing
from ..balancer.planning.problem.shuffle import permutation
from ..balancer.protocol.job_spec import LABEL_TOKENS
from ..balancer.protocol.parts import EpochPosition
from ..balancer.run.ahead import LoopCosts, PlanFeed, PlannedStep
from ..balancer.run.steps import make_contents, usable_cells
from ..balancer.run.tasks import MicrobatchFacts
from ..workers.mixture.mixture import Mixture
from ..workers.mixture.order import epoch_order, epoch_samples
from ..workers.sources.costs import checked_column
from ..workers.sources.data_identity import KnownData
from ..workers.sources.interface import Source
from .adapters.recognition import refuse_to_be_sharded
from .balanced.arguments import check_label_tokens, check_order
from .balanced.step_infos import OverBudget, make_info
from .local.starts import digest_costs
from .refused_arguments import RANK_WORDS, value_classes
from .resume.ledger import SamplerLedger, check_same, check_same_data, read_ledger, write_ledger
from .step.info import StepInfo
from .step.ranks import Place, Ranks, as_ranks, check_same_place

logger = logging.getLogger(__name__)

# Plans of this many windows are kept for `info`; those before are made again, which takes longer.
KEPT_WINDOWS = 64
# A step holds this share of what its microbatches hold when some samples are packed for a trial;
# less where there are few microbatches, because then one more on every rank is dear.
_FILL, _FILL_LESS, _FILL_LEAST = 0.96, 0.9, 0.5
_PILOT = 4096
# The steps of a window, and the feed that has planned it and no other.
PlannedWindow = tuple[tuple[PlannedStep, ...], PlanFeed]


def _value_classes() -> dict[str, type[Any]]:
    classes = value_classes()
    return {name: classes[name] for name in ("ranks", "balance")}


@explain_arguments(_value_classes, RANK_WORDS)
class BalancedBatchSampler(Sampler[list[int]]):
    """Yields, for one rank, the sample numbers of each of its microbatches in turn.

    Args:
        cost: For every resource the cost of each sample of the dataset, whole numbers; or a Mixture
            of sources with such tables: the loader is of its rows, then,
            DataLoader(mixture.rows, batch_sampler=sampler).
        balance: A Balance, or the name of a grouping; without samples_per_step a step has as many
            samples as the budgets let the ranks hold comfortably; default "balanced".
        ranks: The data-parallel rank that this process plays, as in counterpoise.DataLoader, looked
            for when the sampler is first used; default: torch.distributed's, or 0 of 1.
        shuffle: Draw a new order in every epoch, the default; False: the data's order, planned
            within each step.
        drop_last: Leave out the last step if it is not full; default False.
        batch_size: Samples of a microbatch, for grouping "fixed" only; default none.
        accumulate_from: The fewest microbatches per rank and step, with accumulate="auto"; default
            1.
        empty_lists: collate_fn takes an empty list, which torch's default does not: then a last
            step with fewer samples than microbatches is kept, and some lists are empty; default
            False.

    Raises ValueError for wrong or contradictory arguments.

    Samples over budget are logged: the first with its figures, after an epoch how many there were.
    The last step is padded by splitting microbatches. Without empty_lists it is left out if it has
    fewer samples than microbatches, as by DataLoader, and rank 0 logs how many samples that costs.
    """

    # Plans of the last windows, by epoch and first ordinal; and the order of an epoch.
    _plans: dict[tuple[int, int], PlannedWindow]
    _order: tuple[int, Int64] | None = None

    def __init__(
        self,
        cost: Mapping[str, Sequence[int] | np.ndarray] | Mixture,
        balance: Balance | GroupingName = DEFAULTS.grouping,
        *,
        ranks: Any = None,
        shuffle: bool = True,
        drop_last: bool = False,
        batch_size: int | None = None,
        accumulate_from: int = 1,
        empty_lists: bool = False,
    ) -> None:
        options = as_balance(balance)
        check_sampled(options, accumulate_from, batch_size)
        check_order(shuffle, options.mode)
        self._rows = cost.rows if isinstance(cost, Mixture) else None
        if self._rows is not None and options.grouping != "fixed":
            self._rows.refuse_unsaid_costs()
        columns, names = checked_columns(cost.rows.table() if isinstance(cost, Mixture) else cost)
        self._loop_costs = LoopCosts(len(columns), names)
        self._loop_costs.store(np.arange(len(columns)), columns)
        everything: Any = slice(None)
        self._costs = self._loop_costs.rows(everything)  # a view: there may be many
        check_label_tokens(options, names, has_batches=False)
        self._names, self._over_budget = names, OverBudget(options.budgets)
        self._source: Source = self._rows or _Costs(self._loop_costs)
        self._samples = epoch_samples(self._source, shuffle)
        self._data = KnownData(self._source, self._samples)
        self._ranks = _sampler_ranks(ranks, options)
        self._facts: dict[str, Any] = {
            "resources": names, "batch_size": batch_size, "drop_last": drop_last,
            "accumulate_from": accumulate_from, "empty_microbatches": empty_lists,
        }  # fmt: skip
        self._balance = options
        self._place: Place | None = None
        if self._ranks.are_numbers:
            self._placed()
        else:  # finds what is wrong; where samples are counted, the steps of one rank are smaller
            counts = options.grouping == "fixed" and batch_size is not None
            _configuration(
                replace(options, samples_per_step=None) if counts else options,
                self._costs, 1, **self._facts,
            )  # fmt: skip
        self.shuffle = shuffle
        self.epoch = 0
        # windows given out so far: (first ordinal, first step, batches of this rank before it)
        self._windows: list[tuple[int, int, int]] = [(0, 0, 0)]
        self._handed_out = 0
        # `_next` is the epoch of the next iteration, unless it resumes; set_epoch() holds it there.
        self._next, self._pinned, self._resume = 0, False, False
        self._length: tuple[int, int] | None = None

    @property
    def rank(self) -> int:
        """The data-parallel rank of this process; looked for at first use.

        Raises ValueError on ranks of units that work for several.
        """
        played = self._placed().played
        if len(played) > 1:
            raise ValueError(
                f"this process works for data-parallel ranks {', '.join(map(str, played))}, and a "
                "sampler lists the samples of one: use counterpoise.DataLoader(ranks=units)"
            )
        return played[0]

    @property
    def config(self) -> PlanConfig:
        """The configuration of the plan, for as many ranks as there are."""
        self._placed()
        return self._config

    is_planned = True  # cp.adapters does not let it be sharded again

    @property
    def batch_size(self) -> int:
        """Raise: see refuse_to_be_sharded."""
        refuse_to_be_sharded(self._placed().ranks)

    def _placed(self) -> Place:
        """Return this process' ranks, looked for at the first call, and plan for them."""
        if self._place is None:
            place = self._ranks.find()
            self._config = _configuration(self._balance, self._costs, place.ranks, **self._facts)
            self._planner = make_planner(self._config)
            self._place, self._length = place, None
            self._plans = {}
        return self._place

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iterations; a resume elsewhere is forgotten."""
        self._next, self._pinned = epoch, True
        if epoch != self.epoch:
            self.epoch = epoch
            self._restart()

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's microbatches: of the next epoch, or from where a loaded state stands.

        An epoch begins with its first microbatch: torch's iterators call iter() more often.
        Raises ValueError if the ranks are not those of the first use: load_state_dict takes them.
        """
        check_same_place(
            self._placed(),
            self._ranks.find(),
            "make a new sampler for them; load_state_dict() takes a state of the same ranks only",
        )
        if not self._resume:
            self.epoch = self._next
            self._restart()
        self._resume, self._next = False, self.epoch + (not self._pinned)
        order = self._order_of_epoch()
        skip, left_out = self._handed_out - self._windows[-1][2], list[int]()
        for batch in self._batches(order, left_out):
            if skip > 0:
                skip -= 1
                continue
            self._handed_out += 1
            self._tell_over_budget(batch)
            yield batch
        self._over_budget.end_epoch()
        if sum(left_out) and self.rank == 0:
            logger.warning(
                "%d of %d samples were left out of epoch %d: there were fewer than microbatches, "
                "and without empty_lists=True none may be empty",
                sum(left_out), len(order), self.epoch,
            )  # fmt: skip

    def _tell_over_budget(self, batch: list[int]) -> None:
        """Log the first microbatch that holds more than the budgets, and count the others."""
        loads, _ = self.config.sizing.total(self._costs[batch])
        costs = dict(zip(self._names, loads, strict=True))
        self._over_budget.take(self._over_budget.exceeded(costs), costs, [str(n) for n in batch])

    def __len__(self) -> int:
        """Return this rank's microbatches in the epoch; where budgets decide, by planning it."""
        config = self.config
        if config.mode == "exact" and config.accumulate != "auto":
            return config.count_steps(self._samples) * config.accumulate
        if self._length is None or self._length[0] != self.epoch:
            windows, self._windows = self._windows, [(0, 0, 0)]
            count = sum(1 for _ in self._batches(self._order_of_epoch(), []))
            self._length = self.epoch, count
            self._windows = windows
        return self._length[1]

    @property
    def given(self) -> int:
        """Batches of the epoch given out so far, those before a resume included."""
        return self._handed_out

    def info(self, batch_index: int) -> StepInfo:
        """Return where a step stands at one of this rank's batches, and the weights of its loss.

        batch_index: the batch's number in the epoch, from 0. A DataLoader that fetches ahead hands
        batches out in order, so it is that of `enumerate`; after load_state_dict(), that of
        `enumerate(loader, sampler.given)`. label_tokens are the costs that Balance names, else 0.
        Raises IndexError for a batch that was not given out since the epoch or its resume began.
        """
        first = self._windows[0][2]
        if not first <= batch_index < self._handed_out:
            raise IndexError(
                f"batch_index is {batch_index}, and of epoch {self.epoch} the batches from {first} "
                f"up to {self._handed_out} (not included) are known: ask after the batch has come"
            )
        place = bisect_right(self._windows, batch_index, key=lambda window: window[2]) - 1
        start, step, before = self._windows[place]
        steps, _ = self._plan(self._order_of_epoch(), start, step)
        # as many microbatches of this rank are before each step's end; the same for every rank
        ends = list(accumulate(planned.microbatches for planned in steps))
        number = bisect_right(ends, batch_index - before)
        planned, rank = steps[number], self.rank
        microbatch = batch_index - before - (ends[number - 1] if number else 0)
        name = self._balance.label_tokens or LABEL_TOKENS
        label = self._names.index(name) if name in self._names else -1
        cells = usable_cells(planned, (), may_be_empty=True) or {}
        cell_contents = make_contents(planned, cells, [rank], label, self.config.sizing)
        contents = cell_contents[rank, microbatch]
        indexes = planned.find_indexes(contents.ordinals)
        facts = MicrobatchFacts(
            rank=rank, step=planned.number, microbatch=microbatch,
            microbatches=planned.microbatches, weights=contents.weights, costs=contents.costs,
            padding=contents.padding, after=planned.after,
            keys=tuple(map(self._rows.key if self._rows else str, indexes)), holes=(),
            step_holes=(),
        )  # fmt: skip
        sources = self._rows.recipe.names if self._rows else ()
        return make_info(
            facts, self.epoch, self.config.ranks, self._names, self._over_budget, None, sources,
            self._balance.shift_labels,
        )  # fmt: skip

    def _plan(self, order: Int64, start: int, step: int) -> PlannedWindow:
        """Return the plan of the window at an ordinal, made again if it is not kept."""
        place = self.epoch, start
        if place not in self._plans:
            at = EpochPosition(start, step, step, 0, "")
            feed = PlanFeed(self.epoch, order, self._planner, self._loop_costs, at)
            self._plans[place] = tuple(feed.plan() or ()), feed
            if len(self._plans) > KEPT_WINDOWS:
                del self._plans[next(iter(self._plans))]
        return self._plans[place]

    def _order_of_epoch(self) -> Int64:
        if self._order is None or self._order[0] != self.epoch:
            shuffled = epoch_order(self._source, self.config.seed, self.epoch, self.shuffle)
            self._order = self.epoch, shuffled
        return self._order[1]

    def state_dict(self, delivered: int | None = None) -> dict[str, Any]:
        """Return where the epoch stands, as a few JSON values.

        delivered: how many batches of this epoch the training loop has had; without it, how many
        this sampler has given out, which is more where a DataLoader fetches ahead.
        """
        count = self._handed_out if delivered is None else delivered
        if not 0 <= count <= self._handed_out:
            raise ValueError(f"delivered is {count}, but {self._handed_out} batches were given out")
        start, step, before = [window for window in self._windows if window[2] <= count][-1]
        ledger = SamplerLedger(
            seed=self.config.seed, samples=self._samples, data=self._data.identity,
            planner=PLANNER_VERSION, epoch=self.epoch, shuffle=self.shuffle,
            digest=self.config.digest(), start=start, step=step, before=before, given=count,
        )  # fmt: skip
        return write_ledger(ledger)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stand where a state was taken; ValueError if data or configuration are not the same."""
        ledger = read_ledger(state, SamplerLedger)
        self._place = None
        check_same_data(ledger, self._data)
        current = {
            "shuffle": self.shuffle,
            "seed": self.config.seed,
            "digest": self.config.digest(),
        }
        check_same(ledger, current)
        self.epoch, self._pinned = ledger.epoch, False
        self._windows = [(ledger.start, ledger.step, ledger.before)]
        self._handed_out = ledger.given
        self._resume = True

    def _restart(self) -> None:
        self._windows, self._handed_out, self._resume = [(0, 0, 0)], 0, False

    def _batches(self, order: Int64, left_out: list[int]) -> Iterator[list[int]]:
        """This rank's microbatches from the last window noted on, noting every new one.

        How many samples of a window are left out of every step is appended to `left_out`.
        """
        start, step, before = self._windows[-1]
        while start < len(order):
            steps, feed = self._plan(order, start, step)
            left_out.append(feed.left_out)
            for planned in steps:
                for microbatch in range(planned.microbatches):
                    before += 1
                    yield planned.find_indexes(planned.ordinals(self.rank, microbatch))
            start, step = feed.start, feed.step
            if start < len(order):
                self._windows.append((start, step, before))


@dataclass(frozen=True)
class _Costs(Source):
    """The costs, which are all that a sampler knows of its data."""

    costs: LoopCosts

    def __len__(self) -> int:
        return len(self.costs)

    def __getitem__(self, index: int) -> int:
        return index

    @cached_property
    def _digest(self) -> str:
        return digest_costs(self.costs)

    def data_digest(self, samples: int | None = None) -> str:
        """Return a hash of all costs; only grown data are asked for their first samples."""
        return self._digest if samples is None else ""


def check_sampled(balance: Balance, accumulate_from: int, batch_size: int | None) -> None:
    """Raise ValueError for options that would have no effect in a sampler."""
    if (layout := as_layout(balance.layout)) is not None:
        is_built_in = layout.name in BASES
        collate = (
            f"collate_{layout.name}" if is_built_in else "partial(collate_samples, layout=...)"
        )
        raise ValueError(
            f"layout is {balance.layout!r}, but a sampler makes no batches: leave it, and give "
            f"collate_fn={collate} to torch's DataLoader"
        )
    if accumulate_from != 1 and balance.accumulate != "auto":
        raise ValueError(
            f"accumulate_from is {accumulate_from}, but accumulate is {balance.accumulate}: "
            "use Balance(accumulate='auto')"
        )
    if batch_size is not None and balance.grouping != "fixed":
        raise ValueError(f"batch_size belongs to grouping 'fixed', not to {balance.grouping!r}")


def checked_columns(
    costs: Mapping[str, Sequence[int] | np.ndarray],
) -> tuple[Int64, tuple[str, ...]]:
    """Return costs as int64 (samples, resources), and the resources; ValueError for wrong ones."""
    if not costs:
        raise ValueError("costs are empty: give at least one resource, such as tokens")
    arrays = {name: np.asarray(values) for name, values in costs.items()}
    sizes = {len(array) for array in arrays.values()}
    if len(sizes) != 1 or any(array.ndim != 1 for array in arrays.values()):
        shapes = {name: array.shape for name, array in arrays.items()}
        raise ValueError(f"costs need one number per sample and resource, got {shapes}")
    columns = [checked_column(name, values) for name, values in costs.items()]
    return check_costs(np.stack(columns, axis=1), len(columns)), tuple(costs)


def _sampler_ranks(argument: Any, balance: Balance) -> Ranks:
    """Return the ranks of a sampler; ValueError for what only a DataLoader has of them."""
    ranks = as_ranks(argument)
    ranks.check_dispatch(balance.dispatch)
    if ranks.virtual is not None or ranks.name:
        raise ValueError(
            "virtual and name of Ranks are for a counterpoise.DataLoader, and a sampler lists the "
            "samples of one rank: give ranks=(rank, number of ranks), a mesh or a process group"
        )
    return ranks


def _configuration(
    balance: Balance, costs: Int64, ranks: int, *, resources: tuple[str, ...],
    batch_size: int | None, accumulate_from: int, empty_microbatches: bool, drop_last: bool,
) -> PlanConfig:  # fmt: skip
    """Return the configuration for some ranks; a step has its usual size if none is given."""
    rows = accumulate_from if balance.accumulate == "auto" else balance.accumulate
    size = balance.samples_per_step
    if size is None and batch_size is None:
        if balance.is_padded:
            raise ValueError("work is 'padded': give samples_per_step, the size of a step")
        multiples = balance.padding.multiples.items()
        sizing = Sizing(multiples=tuple(
            (resources.index(name), multiple)
            for name, multiple in multiples if name in resources
        ))  # fmt: skip
        size = _usual_step(sizing.rounded(costs), list_budgets(balance, resources), ranks, rows)
        size = size if empty_microbatches else max(size, ranks * rows)
    return PlanConfig.from_balance(
        balance, ranks=ranks, resources=resources, samples_per_step=size, batch_size=batch_size,
        drop_last=drop_last, accumulate_from=accumulate_from,
        empty_microbatches=empty_microbatches,
    )  # fmt: skip


def _usual_step(costs: Int64, budgets: tuple[int | None, ...], ranks: int, rows: int) -> int:
    """Samples that the microbatches of a step hold comfortably."""
    if all(budget is None for budget in budgets):
        raise ValueError("give budgets, or samples_per_step: without both a step has no size")
    if not len(costs):
        return 1
    trial = costs[permutation(len(costs), 0, 0)[:_PILOT]]
    full = len(trial) / balanced(trial, budgets, rounds=0).groups
    fill = max(_FILL_LEAST, _FILL - _FILL_LESS / (rows * math.sqrt(ranks * rows)))
    return max(1, int(fill * ranks * rows * full))
