"""Balanced batches for torch's own DataLoader: the plan without our workers.

    sampler = BalancedBatchSampler({"tiles": tiles, "tokens": tokens},
                                   Balance(budgets={"tiles": 9, "tokens": 4096},
                                           accumulate="auto"), accumulate_from=16)
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler, num_workers=8)

Every rank plans the same epoch by itself, from the same costs and seed, and takes its own share.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from ..balancer.planning.grouping.balanced import balanced
from ..balancer.planning.kernels.arrays import Int64
from ..balancer.planning.planner import make_planner
from ..balancer.planning.problem.balance import (
    COUNTED,
    DEFAULTS,
    Balance,
    GroupingName,
    as_balance,
)
from ..balancer.planning.problem.config import (
    PLANNER_VERSION,
    PlanConfig,
    Window,
    budgets_of,
    check_costs,
)
from ..balancer.planning.problem.costs import checked_column
from ..balancer.planning.problem.shuffle import permutation
from ..workers.sources.data_identity import KnownData
from ..workers.sources.fingerprint import digest_arrays
from .balanced.arguments import refuse_moved_arguments
from .balanced.over_budget import OverBudget
from .refused_arguments import check_order
from .resume.ledger import SamplerLedger, write_ledger
from .resume.reading import check_same, read_ledger
from .resume.same_data import check_same_data
from .step.ranks import Place, RankArguments, check_same_place

logger = logging.getLogger(__name__)

# A step holds this share of what its microbatches hold when some samples are packed for a trial;
# less where there are few microbatches, because then one more on every rank is dear.
_FILL, _FILL_LESS, _FILL_LEAST = 0.96, 0.9, 0.5
_PILOT = 4096


class BalancedBatchSampler(Sampler[list[int]]):
    """Yields, for one rank, the sample numbers of each of its microbatches in turn.

    costs            for every resource the cost of each sample of the dataset, whole numbers
    balance          a counterpoise.Balance, or the name of a grouping; without samples_per_step a
                     step has as many samples as the budgets let the ranks hold comfortably
    rank, ranks      this process' rank, and their number; by default torch.distributed's, or 0 of
                     1, looked for when the sampler is first used
    process_group    the data-parallel process group, as in DDP; by default all processes
    topology         which processes share a data-parallel rank; as in counterpoise.DataLoader
    shuffle          draw a new order in every epoch; False: the data's order, planned within
                     each step
    drop_last        leave out the last step if it is not full
    batch_size       samples of a microbatch, for the groupings that count them only
    accumulate_from  the fewest microbatches per rank and step, with accumulate="auto"
    empty_lists      collate_fn takes an empty list, which torch's default does not: then a last
                     step with fewer samples than microbatches is kept, and some lists are empty

    Raises ValueError for wrong or contradictory arguments.

    Samples over budget are logged: the first with its figures, after an epoch how many there were.
    The last step is padded by splitting microbatches. Without empty_lists it is left out if it has
    fewer samples than microbatches, as by DataLoader, and rank 0 logs how many samples that costs.
    """

    @refuse_moved_arguments
    def __init__(
        self,
        costs: Mapping[str, Sequence[int] | np.ndarray],
        balance: Balance | GroupingName = DEFAULTS.grouping,
        *,
        rank: int | None = None,
        ranks: int | None = None,
        process_group: Any = None,
        topology: Any = None,
        shuffle: bool = True,
        drop_last: bool = False,
        batch_size: int | None = None,
        accumulate_from: int = 1,
        empty_lists: bool = False,
    ) -> None:
        wanted = as_balance(balance)
        _check_sampled(wanted, accumulate_from)
        check_order(shuffle, wanted.mode)
        self._costs, names = _columns(costs)
        self._names, self._over_budget = names, OverBudget(wanted.budgets)
        self._data = KnownData(_Costs(names, self._costs), len(self._costs))
        self._arguments = RankArguments(rank, ranks, None, process_group, topology)
        self._configure = partial(
            _configuration, costs=self._costs, resources=names, batch_size=batch_size,
            drop_last=drop_last, accumulate_from=accumulate_from, empty_lists=empty_lists,
        )  # fmt: skip
        self._balance = wanted
        self._place: Place | None = None
        if self._arguments.are_given:
            self._placed()
        else:
            self._configure(_for_one_rank(wanted, batch_size), ranks=1)  # finds what is wrong
        self.shuffle = shuffle
        self.epoch = 0
        # windows given out so far: (first ordinal, first step, batches of this rank before it)
        self._windows: list[tuple[int, int, int]] = [(0, 0, 0)]
        self._given = 0
        self._resume = False
        self._length: tuple[int, int] | None = None

    @property
    def rank(self) -> int:
        """The data-parallel rank of this process; looked for at first use."""
        return self._placed().played[0]

    @property
    def config(self) -> PlanConfig:
        """The configuration of the plan, for as many ranks as there are."""
        self._placed()
        return self._config

    def _placed(self) -> Place:
        """Return this process' ranks, looked for at the first call, and plan for them."""
        if self._place is None:
            place = self._arguments.find()
            self._config = self._configure(self._balance, ranks=place.ranks)
            self._planner = make_planner(self._config)
            self._place, self._length = place, None
        return self._place

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration plans; a resume elsewhere is forgotten."""
        if epoch != self.epoch:
            self.epoch = epoch
            self._restart()

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's microbatches of the epoch, from where a loaded state stands.

        Raises ValueError if the ranks are not those of the first use: load_state_dict takes them.
        """
        check_same_place(
            self._placed(),
            self._arguments.find(),
            "make a new sampler for them; load_state_dict() takes a state of the same ranks only",
        )
        if not self._resume:
            self._restart()
        self._resume = False
        order = permutation(len(self._costs), self.config.seed, self.epoch, self.shuffle)
        skip, left_out = self._given - self._windows[-1][2], list[int]()
        for batch in self._batches(order, left_out):
            if skip > 0:
                skip -= 1
                continue
            self._given += 1
            self._tell_over_budget(batch)
            yield batch
        if skip > 0:
            raise ValueError(
                f"ledger.given says that {self._given} microbatches were given out, and the epoch "
                f"has {self._given - skip}: resume with the same costs and options"
            )
        self._over_budget.end_epoch()
        if sum(left_out) and self.rank == 0:
            logger.warning(
                "%d of %d samples were left out of epoch %d: there were fewer than microbatches, "
                "and without empty_lists=True none may be empty",
                sum(left_out), len(order), self.epoch,
            )  # fmt: skip

    def _tell_over_budget(self, batch: list[int]) -> None:
        """Log the first microbatch that holds more than the budgets, and count the others."""
        sums = self._costs[batch].sum(axis=0).tolist()
        costs = dict(zip(self._names, sums, strict=True))
        self._over_budget.take(self._over_budget.exceeded(costs), costs, [str(n) for n in batch])

    def __len__(self) -> int:
        """Return this rank's microbatches in the epoch; where budgets decide, by planning it."""
        config = self.config
        if config.mode == "exact" and config.accumulate != "auto":
            return config.steps_of(len(self._costs)) * config.accumulate
        if self._length is None or self._length[0] != self.epoch:
            kept, self._windows = self._windows, [(0, 0, 0)]
            order = permutation(len(self._costs), config.seed, self.epoch, self.shuffle)
            self._length = self.epoch, sum(1 for _ in self._batches(order, []))
            self._windows = kept
        return self._length[1]

    def state_dict(self, delivered: int | None = None) -> dict[str, Any]:
        """Return where the epoch stands, as a few JSON values.

        delivered: how many batches of this epoch the training loop has had; without it, how many
        this sampler has given out, which is more where a DataLoader fetches ahead.
        """
        given = self._given if delivered is None else delivered
        if not 0 <= given <= self._given:
            raise ValueError(f"delivered is {given}, but {self._given} batches were given out")
        start, step, before = [window for window in self._windows if window[2] <= given][-1]
        ledger = SamplerLedger(
            seed=self.config.seed,
            samples=len(self._costs),
            data=self._data.identity,
            planner=PLANNER_VERSION,
            epoch=self.epoch,
            shuffle=self.shuffle,
            digest=self.config.digest(),
            start=start,
            step=step,
            before=before,
            given=given,
        )
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
        _check_place(ledger, self.config)
        self.epoch = ledger.epoch
        self._windows = [(ledger.start, ledger.step, ledger.before)]
        self._given = ledger.given
        self._resume = True

    def _restart(self) -> None:
        self._windows, self._given, self._resume = [(0, 0, 0)], 0, False

    def _batches(self, order: Int64, left_out: list[int]) -> Iterator[list[int]]:
        """This rank's microbatches from the last window noted on, noting every new one.

        How many samples of a window are left out of every step is appended to `left_out`.
        """
        start, step, before = self._windows[-1]
        while start < len(order):
            some = order[start : start + self._planner.window_samples]
            last = start + len(some) >= len(order)
            window = Window(self.epoch, step, start, self._costs[some], last)
            planned = self._planner.plan(window)
            left_out.append(planned.left_out)
            numbers = some.tolist()
            for batch in planned.batches:
                for microbatch in batch.ranks[self.rank]:
                    before += 1
                    yield [numbers[ordinal - start] for ordinal in microbatch.ordinals]
            start += planned.consumed
            step += len(planned.batches)
            if start < len(order):
                self._windows.append((start, step, before))


def _check_place(ledger: SamplerLedger, config: PlanConfig) -> None:
    """Raise ValueError for a window that is not where the plan puts it, as far as that is known."""
    if config.mode != "exact":
        return
    start = min(ledger.step * config.samples_per_step, ledger.samples or 0)
    possible = {"start": range(start, start + 1)}
    if config.accumulate != "auto":
        before = ledger.step * config.accumulate
        possible |= {"before": range(before, before + 1)}
        possible |= {"given": range(before, before + config.accumulate + 1)}
    for name, allowed in possible.items():
        if getattr(ledger, name) not in allowed:
            raise ValueError(
                f"ledger.{name} is {getattr(ledger, name)}, and at step {ledger.step} "
                f"{allowed.start} to {allowed.stop - 1} are possible: it was changed or damaged"
            )


@dataclass(frozen=True)
class _Costs:
    """The costs, which are all that a sampler knows of its data."""

    names: tuple[str, ...]
    values: Int64

    @cached_property
    def _digest(self) -> str:
        return digest_arrays(repr(self.names).encode(), self.values)

    def data_digest(self, samples: int | None = None) -> str:
        """Return a hash of all costs; only grown data are asked for their first samples."""
        return self._digest if samples is None else ""


def _check_sampled(balance: Balance, accumulate_from: int) -> None:
    """Raise ValueError for options that would have no effect here."""
    if balance.layout != DEFAULTS.layout:
        raise ValueError(
            f"layout is {balance.layout!r}, but a sampler makes no batches: leave it, and give "
            f"collate_fn=collate_{balance.layout} to torch's DataLoader"
        )
    if balance.ordering != DEFAULTS.ordering:
        raise ValueError(
            f"ordering is {balance.ordering!r}, but a sampler knows no pipeline: use 'given'"
        )
    if accumulate_from != 1 and balance.accumulate != "auto":
        raise ValueError(
            f"accumulate_from is {accumulate_from}, but accumulate is {balance.accumulate}: "
            "use Balance(accumulate='auto')"
        )


def _columns(costs: Mapping[str, Sequence[int] | np.ndarray]) -> tuple[Int64, tuple[str, ...]]:
    if not costs:
        raise ValueError("costs are empty: give at least one resource, such as tokens")
    arrays = {name: np.asarray(values) for name, values in costs.items()}
    sizes = {len(array) for array in arrays.values()}
    if len(sizes) != 1 or any(array.ndim != 1 for array in arrays.values()):
        shapes = {name: array.shape for name, array in arrays.items()}
        raise ValueError(f"costs need one number per sample and resource, got {shapes}")
    columns = [checked_column(name, values) for name, values in costs.items()]
    return check_costs(np.stack(columns, axis=1), len(columns)), tuple(costs)


def _for_one_rank(balance: Balance, batch_size: int | None) -> Balance:
    """Return a balance that one rank can have: where samples are counted its steps are smaller."""
    counts = balance.grouping in COUNTED and batch_size is not None
    return replace(balance, samples_per_step=None) if counts else balance


def _configuration(
    balance: Balance,
    costs: Int64,
    resources: tuple[str, ...],
    batch_size: int | None,
    drop_last: bool,
    accumulate_from: int,
    empty_lists: bool,
    ranks: int,
) -> PlanConfig:
    """Return the configuration for some ranks; a step has its usual size if none is given."""
    rows = accumulate_from if balance.accumulate == "auto" else balance.accumulate
    size = balance.samples_per_step
    if size is None:
        size = _usual_step(costs, budgets_of(balance, resources), ranks, rows, batch_size)
        size = size if empty_lists else max(size, ranks * rows)
    return PlanConfig.from_balance(
        balance,
        ranks=ranks,
        resources=resources,
        samples_per_step=size,
        batch_size=batch_size,
        drop_last=drop_last,
        accumulate_from=accumulate_from,
        empty_microbatches=empty_lists,
    )


def _usual_step(
    costs: Int64, budgets: tuple[int | None, ...], ranks: int, rows: int, batch_size: int | None
) -> int:
    """Samples that the microbatches of a step hold comfortably."""
    if batch_size is not None:
        return ranks * rows * batch_size
    if all(budget is None for budget in budgets):
        raise ValueError("give budgets, or samples_per_step: without both a step has no size")
    if not len(costs):
        return 1
    some = costs[permutation(len(costs), 0, 0)[:_PILOT]]
    full = len(some) / balanced(some, budgets, rounds=0).groups
    fill = max(_FILL_LEAST, _FILL - _FILL_LESS / (rows * math.sqrt(ranks * rows)))
    return max(1, int(fill * ranks * rows * full))
