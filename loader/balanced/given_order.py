"""Reads from torch's arguments which order a balanced loader is to plan: sampler and generator.

torch's own samplers say no more than shuffle, seed and rank, and those a plan has too.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
)

from ...balancer.planning.problem.balance import DEFAULTS, Balance
from ..step.ranks import RankArguments

OWN = "a balanced loader plans its own order"


@dataclass(frozen=True, slots=True)
class GivenOrder:
    """The order that a sampler and a generator give; None where they give none.

    follows: the DistributedSampler whose epoch is read at each iteration.
    """

    shuffle: bool | None
    seed: int | None = None
    rank: int | None = None
    ranks: int | None = None
    follows: DistributedSampler[Any] | None = None


def read_order(
    dataset: Any, sampler: Any, batch_sampler: Any, generator: Any, shuffle: bool | None
) -> GivenOrder:
    """Return the order that torch's arguments ask for; ValueError with the line to write instead.

    >>> read_order([1, 2], SequentialSampler([1, 2]), None, None, None)
    GivenOrder(shuffle=False, seed=None, rank=None, ranks=None, follows=None)
    """
    if batch_sampler is not None:
        raise ValueError(
            f"{OWN}, and batches: leave batch_sampler, and write DataLoader(data, batch_size=8, "
            'shuffle=True, balance="auto"); cp.BalancedBatchSampler is a batch sampler for torch\'s'
        )
    seed = None if generator is None else generator.initial_seed()
    if sampler is None:
        return GivenOrder(shuffle, seed)
    if shuffle:
        raise ValueError(f"{OWN}: give shuffle=True or a sampler, not both")
    _check_known(sampler)
    _check_length(sampler, dataset)
    if isinstance(sampler, DistributedSampler):
        given = {"seed": sampler.seed, "rank": sampler.rank, "ranks": sampler.num_replicas}
        _check_seed(seed, sampler.seed)
        return GivenOrder(sampler.shuffle, **given, follows=sampler)
    if isinstance(sampler, RandomSampler):
        own = None if sampler.generator is None else sampler.generator.initial_seed()
        return GivenOrder(True, seed if own is None else own)
    return GivenOrder(False, seed)


def _check_known(sampler: Any) -> None:
    """Refuse samplers that a plan cannot stand for; subclasses may do anything."""
    if type(sampler) is RandomSampler:
        if sampler.replacement or sampler.num_samples != len(sampler.data_source):
            raise ValueError(
                f"{OWN}, each sample once an epoch: leave replacement and num_samples of "
                "RandomSampler, and write shuffle=True"
            )
        return
    if type(sampler) in (DistributedSampler, SequentialSampler):
        return
    if type(sampler) is SubsetRandomSampler:
        raise ValueError(
            f"{OWN}: write DataLoader(torch.utils.data.Subset(data, indices), shuffle=True, ...) "
            "in place of SubsetRandomSampler(indices)"
        )
    raise ValueError(
        f"{OWN}, and sampler is a {type(sampler).__name__}: leave it and write shuffle=True, or "
        "DataLoader(torch.utils.data.Subset(data, list(sampler)), shuffle=False, ...) for its "
        "order; for weights keep torch's loader"
    )


def _check_length(sampler: Any, dataset: Any) -> None:
    data: Any = sampler.dataset if isinstance(sampler, DistributedSampler) else sampler.data_source
    if len(data) != len(dataset):
        raise ValueError(
            f"the sampler is of {len(data)} samples, and the data set has {len(dataset)}: make it "
            "of the same data, or leave it and write shuffle=True"
        )


def _check_seed(drawn: int | None, seed: int) -> None:
    if drawn is not None and drawn != seed:
        raise ValueError(
            f"DistributedSampler's seed is {seed}, and generator's {drawn}: leave generator"
        )


def with_seed(balance: Balance, order: GivenOrder) -> Balance:
    """Return the balance with an order's seed, if it has one; ValueError for two seeds."""
    if order.seed is None:
        return balance
    if balance.seed not in (DEFAULTS.seed, order.seed):
        raise ValueError(
            f"Balance(seed={balance.seed}) and the seed of sampler or generator, {order.seed}, "
            "contradict each other: leave one of them"
        )
    return replace(balance, seed=order.seed)


def with_rank(ranks: RankArguments, order: GivenOrder) -> RankArguments:
    """Return the ranks that a DistributedSampler says, or those given; ValueError for both."""
    if order.follows is None:
        return ranks
    given = [each.name for each in fields(ranks) if getattr(ranks, each.name) != each.default]
    if given:
        raise ValueError(
            f"DistributedSampler says which rank this process plays, and {given[0]} too: leave the "
            "sampler, and write shuffle=True"
        )
    return replace(ranks, rank=order.rank, ranks=order.ranks)
