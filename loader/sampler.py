"""Balanced batches for torch's own DataLoader: the plan without our workers.

    sampler = BalancedBatchSampler({"tiles": tiles, "tokens": tokens},
                                   Balance(budgets={"tiles": 9, "tokens": 4096},
                                           accumulate="auto"), accumulate_from=16)
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler, num_workers=8)

Every rank plans the same epoch by itself, from the same costs and seed, and takes its own share.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch.distributed
from torch.utils.data import Sampler

from ..balancer.planning.grouping.balanced import balanced
from ..balancer.planning.kernels.arrays import Int64
from ..balancer.planning.planner import make_planner
from ..balancer.planning.problem.balance import DEFAULTS, Balance, GroupingName, as_balance
from ..balancer.planning.problem.config import (
    PLANNER_VERSION,
    PlanConfig,
    Window,
    budgets_of,
    check_costs,
)
from ..balancer.planning.problem.costs import checked_column
from ..balancer.planning.problem.shuffle import permutation
from .balanced.arguments import refuse_moved_arguments
from .resume.ledger import SamplerLedger, check_same, read_ledger, write_ledger

# A step holds this share of what its microbatches hold when some samples are packed for a trial;
# less where there are few microbatches, because then one more on every rank is dear.
_FILL, _FILL_LESS, _FILL_LEAST = 0.96, 0.9, 0.5
_PILOT = 4096


class BalancedBatchSampler(Sampler[list[int]]):
    """Yields, for one rank, the sample numbers of each of its microbatches in turn.

    costs            for every resource the cost of each sample of the dataset, whole numbers
    balance          a counterpoise.Balance, or the name of a grouping; without samples_per_step a
                     step has as many samples as the budgets let the ranks hold comfortably
    rank, ranks      this process' rank, and their number; by default torch.distributed's, or 0 of 1
    shuffle          draw a new order in every epoch
    drop_last        leave out the last step if it is not full
    batch_size       samples of a microbatch, for the groupings that count them only
    accumulate_from  the fewest microbatches per rank and step, with accumulate="auto"

    Raises ValueError for wrong or contradictory arguments.

    The last step is padded by splitting microbatches; only if it has fewer samples than
    microbatches some lists are empty: collate_fn must take that, or drop_last=True.
    """

    @refuse_moved_arguments
    def __init__(
        self,
        costs: Mapping[str, Sequence[int] | np.ndarray],
        balance: Balance | GroupingName = DEFAULTS.grouping,
        *,
        rank: int | None = None,
        ranks: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        batch_size: int | None = None,
        accumulate_from: int = 1,
    ) -> None:
        wanted = as_balance(balance)
        _check_sampled(wanted, accumulate_from)
        self._costs, names = _columns(costs)
        self.rank, count = _place(rank, ranks)
        usual = partial(_usual_step, self._costs, budgets_of(wanted, names), count)
        rows = accumulate_from if wanted.accumulate == "auto" else wanted.accumulate
        self.config = PlanConfig.from_balance(
            wanted,
            ranks=count,
            resources=names,
            samples_per_step=wanted.samples_per_step or usual(rows, batch_size),
            batch_size=batch_size,
            drop_last=drop_last,
            accumulate_from=accumulate_from,
        )
        self.shuffle = shuffle
        self.epoch = 0
        self._planner = make_planner(self.config)
        # windows given out so far: (first ordinal, first step, batches of this rank before it)
        self._windows: list[tuple[int, int, int]] = [(0, 0, 0)]
        self._given = 0
        self._resume = False
        self._length: tuple[int, int] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration plans; a resume elsewhere is forgotten."""
        if epoch != self.epoch:
            self.epoch = epoch
            self._restart()

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's microbatches of the epoch, from where a loaded state stands."""
        if not self._resume:
            self._restart()
        self._resume = False
        order = permutation(len(self._costs), self.config.seed, self.epoch, self.shuffle)
        skip = self._given - self._windows[-1][2]
        for batch in self._batches(order):
            if skip > 0:
                skip -= 1
                continue
            self._given += 1
            yield batch

    def __len__(self) -> int:
        """Return this rank's microbatches in the epoch; where budgets decide, by planning it."""
        config = self.config
        if config.mode == "exact" and config.accumulate != "auto":
            steps, rest = divmod(len(self._costs), config.samples_per_step)
            return (steps + bool(rest and not config.drop_last)) * config.accumulate
        if self._length is None or self._length[0] != self.epoch:
            kept, self._windows = self._windows, [(0, 0, 0)]
            order = permutation(len(self._costs), config.seed, self.epoch, self.shuffle)
            self._length = self.epoch, sum(1 for _ in self._batches(order))
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
            planner=PLANNER_VERSION,
            epoch=self.epoch,
            shuffle=self.shuffle,
            digest=self.config.digest(),
            start=start,
            step=step,
            before=before,
            given=given,
            samples=len(self._costs),
        )
        return write_ledger(ledger)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stand where a state was taken; ValueError if data or configuration are not the same."""
        ledger = read_ledger(state, SamplerLedger)
        current = {
            "samples": len(self._costs),
            "shuffle": self.shuffle,
            "seed": self.config.seed,
            "digest": self.config.digest(),
        }
        check_same(ledger, current)
        self.epoch = ledger.epoch
        self._windows = [(ledger.start, ledger.step, ledger.before)]
        self._given = ledger.given
        self._resume = True

    def _restart(self) -> None:
        self._windows, self._given, self._resume = [(0, 0, 0)], 0, False

    def _batches(self, order: Int64) -> Iterator[list[int]]:
        """This rank's microbatches from the last window noted on, noting every new one."""
        start, step, before = self._windows[-1]
        while start < len(order):
            some = order[start : start + self._planner.window_samples]
            last = start + len(some) >= len(order)
            window = Window(self.epoch, step, start, self._costs[some], last)
            planned = self._planner.plan(window)
            numbers = some.tolist()
            for batch in planned.batches:
                for microbatch in batch.ranks[self.rank]:
                    before += 1
                    yield [numbers[ordinal - start] for ordinal in microbatch.ordinals]
            start += planned.consumed
            step += len(planned.batches)
            if start < len(order):
                self._windows.append((start, step, before))


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


def _place(rank: int | None, ranks: int | None) -> tuple[int, int]:
    running = torch.distributed.is_available() and torch.distributed.is_initialized()
    count = ranks if ranks is not None else torch.distributed.get_world_size() if running else 1
    own = rank if rank is not None else torch.distributed.get_rank() if running else 0
    if not 0 <= own < count:
        raise ValueError(f"rank is {own} of {count} ranks; it counts from 0 to {count - 1}")
    return own, count


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
