"""The meeting at the start: who does not come is named by everyone who does, in time."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from counterpoise.sched.runtime.links.meeting import gather_objects, monitored_gather
from counterpoise.sched.runtime.links.process_groups import PeerLostError

RANKS = 3
CPU = torch.device("cpu")


def in_threads(task: Callable[[int, Any], Any], ranks: range) -> list[Any]:
    """Return what a task returns on these ranks of a gloo group, or the error that it raises."""
    store = HashStore()

    def run(rank: int) -> Any:
        group = dist.ProcessGroupGloo(store, rank, RANKS, timedelta(seconds=60))
        if rank not in ranks:
            return group  # it is there, and never says a word
        try:
            return task(rank, group)
        except PeerLostError as error:
            return str(error)

    with ThreadPoolExecutor(RANKS) as threads:
        return list(threads.map(run, range(RANKS)))


def meet(rank: int, group: Any, deadline_s: float) -> list[int]:
    """Return the ranks that are met."""
    found = monitored_gather(torch.tensor(rank), group, deadline_s, "make the pipeline")
    return [int(one) for one in found]


def test_all_who_come_are_met() -> None:
    found = in_threads(lambda rank, group: meet(rank, group, 60.0), range(RANKS))
    assert found == [list(range(RANKS))] * RANKS


def test_everybody_names_the_rank_that_does_not_come() -> None:
    *came, _ = in_threads(lambda rank, group: meet(rank, group, 0.5), range(RANKS - 1))
    for rank, said in enumerate(came):
        assert re.match(f"rank {rank} of 3 waits since 0.5 s for rank 2, which did not", said)


def test_objects_of_any_size_are_gathered_by_rank() -> None:
    given: list[Any] = [None, "x" * 1000, {"stages": (1, 2)}]
    found = in_threads(lambda rank, group: gather_objects(given[rank], group, CPU, 60.0), range(3))
    assert found == [given] * RANKS


def test_one_process_needs_no_messages() -> None:
    assert gather_objects("own", None, CPU, 0.0) == ["own"]
