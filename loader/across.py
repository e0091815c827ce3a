"""Deals items that ranks have a part of each: which of them go where, `cp.partition_across`."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..balancer import Work, partition
from ..balancer.in_memory.partition import Partition
from ..balancer.in_memory.problem import Budgets, Ids, KeepGroups, Numbers, Remainder
from ..balancer.planning.kernels.arrays import Int64
from ..balancer.planning.problem.options import Counts, WorkName
from .step.dispatch.exchange import Exchange


@dataclass(frozen=True, slots=True, eq=False)
class PartitionAcross:
    """A partition of all ranks' items, and what this rank sends for it; by `partition_across`.

    Args:
        partition: All ranks' deal; an item's index counts the items of lower ranks before it.
        send: For each rank, the positions of this rank's items that go there.
        receive: From each rank, the number of items that come from there.
        items: How many this rank had.
        order: int64: what was received, in order of the senders and indexed by it, is what
            `partition.ranks` lists for this rank.
        exchange: Sends and receives rows.
    """

    partition: Partition
    send: list[list[int]]
    receive: list[int]
    items: int
    order: Int64
    exchange: Exchange

    def swap(self, rows: Tensor) -> Tensor:
        """Return the rows of the items that `partition.ranks` lists for this rank.

        rows (items, ...) are those of the items that this rank had; but for their number they have
        one shape on all ranks. A collective call, one all_to_all; LoaderError if a rank is late.
        """
        if len(rows) != self.items:
            raise ValueError(f"got {len(rows)} rows of {self.items} items: give one for each")
        chosen = rows[torch.tensor([*chain(*self.send)], dtype=torch.int64)]
        counts = [len(places) for places in self.send]
        received = self.exchange.swap(chosen, counts, self.receive, "rows of partition_across")
        return received[torch.from_numpy(self.order)]


def partition_across(
    costs: Numbers | Mapping[str, Numbers], *, process_group: Any = None,
    counts: Counts = "equal", remainder: Remainder = "keep", budgets: Budgets = None,
    min_microbatches: int = 1, multiple_of: int = 1,
    work: Work | WorkName | Mapping[str, int] = "packed", loads: Numbers | None = None,
    groups: Ids | None = None, keep_groups: KeepGroups = "together", keep_order: bool = False,
    speeds: Numbers | None = None,
) -> PartitionAcross:  # fmt: skip
    """Return the deal of all ranks' items, each giving what its own cost, and what goes where.

    A collective call: costs, loads and groups are gathered (two all_gathers: sizes, then bytes),
    items are not. Every rank then computes the same `partition`, and what one rank gives wrong is
    an error on all. ValueError also where ranks give other options; LoaderError where one does not
    come. Without torch.distributed there is one rank.

    Args:
        costs, loads, groups: Of this rank's items; a group's id is the same on all ranks.
        process_group: The ranks that take part; default: all.
        counts, remainder, budgets, min_microbatches, multiple_of: As in `partition`.
        work, keep_groups, keep_order, speeds: As there; like those, the same on all ranks.

    >>> partition_across([900, 100, 500]).send
    [[0, 1, 2]]
    """
    options: dict[str, Any] = {
        "counts": counts, "remainder": remainder, "budgets": budgets,
        "min_microbatches": min_microbatches, "multiple_of": multiple_of, "work": work,
        "keep_groups": keep_groups, "keep_order": keep_order, "speeds": speeds,
    }  # fmt: skip
    columns = costs if isinstance(costs, Mapping) else {"": costs}
    mine = {name: _to_list(column) for name, column in columns.items()}
    beside = {"loads": loads, "groups": groups}
    mine_beside = {name: _to_list(x) for name, x in beside.items() if x is not None}
    options_text = f"costs {[*mine]}, {[*mine_beside]}, {options}"
    exchange = Exchange(process_group)
    gathered = exchange.gather((options_text, mine, mine_beside), "costs of partition_across")
    for rank, (other_text, parts, more) in enumerate(gathered):
        lengths = {name: len(values) for name, values in {**parts, **more}.items()}
        if len({*lengths.values()}) > 1:
            raise ValueError(
                f"rank {rank} gives lists of {lengths} numbers: give one an item in each"
            )
        if other_text != gathered[0][0]:
            raise ValueError(
                f"partition_across differs on rank 0, with {gathered[0][0]}, and on rank {rank}, "
                f"with {other_text}: give the same on all ranks"
            )
    joined = {name: [*chain(*(part[1][name] for part in gathered))] for name in mine}
    for name in mine_beside:
        options[name] = [*chain(*(part[2][name] for part in gathered))]
    all_costs = joined if isinstance(costs, Mapping) else joined[""]
    dealt = partition(all_costs, exchange.rank_count, **options)
    sizes = [len(next(iter(part[1].values()))) for part in gathered]
    edges = np.concatenate([[0], np.cumsum(sizes)])
    begin, end = edges[exchange.rank : exchange.rank + 2].tolist()
    send = [[k - begin for k in sorted(indices) if begin <= k < end] for indices in dealt.ranks]
    listed = np.array(dealt.ranks[exchange.rank], dtype=np.int64)
    receive = np.diff(np.searchsorted(np.sort(listed), edges)).tolist()
    order = np.argsort(np.argsort(listed, kind="stable"), kind="stable")
    return PartitionAcross(dealt, send, receive, end - begin, order, exchange)


def _to_list(numbers: Any) -> list[Any]:
    """Return what is sent to other ranks, also of a tensor on any device."""
    return numbers.tolist() if hasattr(numbers, "tolist") else [*numbers]
