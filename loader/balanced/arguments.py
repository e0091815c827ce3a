"""Checks a balanced loader's arguments, torch's among them.

torch's own samplers say no more than shuffle, seed and rank, and those a plan has too.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    default_collate,
)

from ...balancer.planning.problem.balance import DEFAULTS, Balance
from ...balancer.planning.problem.layout import as_layout
from ...balancer.planning.problem.options import Waits
from ...balancer.planning.problem.values import as_images
from ...balancer.protocol.job_spec import IN_BATCHES
from ...workers.planned.measuring import MAX_THREADS, refuse_threads
from ...workers.sources.interface import Source
from ...workers.sources.plain import probe_resources
from ..step.ranks import Ranks

DEFAULT_RESOURCES = ("tiles", "tokens", "label_tokens")
OWN = "a balanced loader plans its own order"


def adopt_waits(balance: Balance, waits: Waits | None) -> Balance:
    """Return a Balance with the waits that a framework says, where the user has not said any.

    They change nothing where a step has one microbatch, or a partition that does not look at them.
    """
    looks = balance.partition == "multi_resource" and balance.accumulate != 1
    return replace(balance, waits=waits) if balance.waits is None and looks else balance


def check_label_tokens(
    balance: Balance, resources: tuple[str, ...], has_batches: bool = True
) -> None:
    """Raise ValueError where nothing counts what is said to count label tokens.

    has_batches: whether there is a loader, which can count them in its batches.
    """
    counted = (*resources, IN_BATCHES) if has_batches else resources
    if balance.label_tokens not in (None, *counted):
        raise ValueError(
            f"label_tokens is {balance.label_tokens!r}, but samples cost {', '.join(resources)}: "
            "name one of these, or let cost() or probe() give it"
            + (', or count them in batches: label_tokens="batch"' if has_batches else "")
        )


def find_resources(
    source: Source | None, balance: Balance, sleep: Callable[[float], None] = time.sleep
) -> tuple[str, ...]:
    """Return the names of a source's costs, in its own order.

    They are source.resources where it has them; otherwise those of the first sample that can be
    probed. A failed read is retried after `sleep(seconds)`. Without a source (workers elsewhere
    have it): the default resources, and any other that has a budget or counts label tokens.
    """
    if source is None:
        named = (
            *balance.budgets,
            *balance.padding.multiples,
            *filter(None, [balance.label_tokens, balance.bucket_by]),
        )
        known = (*DEFAULT_RESOURCES, IN_BATCHES)
        extra = dict.fromkeys(name for name in named if name not in known)
        return (*DEFAULT_RESOURCES, *extra)
    if balance.grouping != "fixed":
        source.refuse_unsaid_costs()
    return probe_resources(source, sleep)


def checked_shuffle(shuffle: bool | None, mode: str) -> bool:
    """Return whether a balanced loader shuffles; ValueError without `shuffle`.

    torch's default is the data's order, and a training loop that forgets `shuffle` notices
    nothing: the caller has to say it. In the data's order each step has the samples that stand
    there, so that nothing is planned over several steps.
    """
    if shuffle is None:
        raise ValueError(
            "a balanced loader has no default for shuffle: give shuffle=True for another order in "
            "each epoch, or shuffle=False for the data's order, planned within each step"
        )
    check_order(shuffle, mode)
    return shuffle


def check_order(shuffle: bool, mode: str) -> None:
    """Raise ValueError where the data's order is asked for, and a mode that does not keep it."""
    if not shuffle and mode != "exact":
        raise ValueError(
            f"shuffle=False keeps the data's order step by step, and mode {mode!r} moves samples "
            "between steps: use mode 'exact', or shuffle=True"
        )


def refuse_ignored(
    is_remote: bool, balance: Balance, batch_size: int | None, cost: Any, key: Any
) -> None:
    """Raise ValueError for arguments that have no effect beside others of a balanced loader.

    is_remote: whether the data set is a RemoteDataset.
    """
    if balance.grouping == "auto" and batch_size is None:
        raise ValueError(
            'balance="auto" keeps batch_size samples a microbatch, and batch_size is None: '
            "give batch_size, or balance=None for samples without batches"
        )
    if balance.grouping not in ("fixed", "auto"):
        # 1 is the default of torch's DataLoader: it cannot be told from an argument that was given.
        is_default = batch_size is None or batch_size == 1
        if balance.samples_per_step is not None and not is_default:
            raise ValueError(
                f"batch_size is {batch_size}, but samples_per_step is {balance.samples_per_step} "
                f"and grouping {balance.grouping!r} decides how many samples a microbatch has: "
                "leave batch_size, or use grouping 'fixed'"
            )
        # Steps would have no size.
        if balance.budgets and balance.samples_per_step is None:
            extra = "" if is_default else f" instead of batch_size={batch_size}"
            raise ValueError(
                "budgets decide how many samples a microbatch has, and nothing says how many a "
                "step has: give Balance(samples_per_step=...), the global batch of all ranks"
                f"{extra}"
            )
    if is_remote:
        for name, value in (("cost", cost), ("key", key)):
            if value is not None:
                raise ValueError(
                    f"{name} is for a dataset in this process, and a RemoteDataset is with the "
                    f"workers: leave {name}; their transform says what a sample costs"
                )
    side = as_images(balance.images).dummy_tile
    if side and as_layout(balance.layout) is None:
        raise ValueError(
            f"images: dummy_tile is {side}, but in layout 'torch' collate_fn makes the batch: "
            "leave dummy_tile, or use layout 'padded' or 'packed'"
        )


def check_decode_threads(
    threads: int, is_remote: bool, workers: int, source: Source | None
) -> None:
    """Raise ValueError for a number of decode threads that no worker of this loader can have."""
    if type(threads) is not int or not 1 <= threads <= MAX_THREADS:
        raise ValueError(
            f"decode_threads is {threads!r}: give the number of threads that decode in each "
            f"worker, 1 to {MAX_THREADS}"
        )
    if threads == 1:
        return
    if is_remote:
        raise ValueError(
            f"decode_threads={threads} is for workers that this loader starts, and with balancer= "
            f"they are elsewhere: start them with `counterpoise worker --threads {threads}`"
        )
    if workers == 0:
        raise ValueError(
            f"decode_threads={threads} are threads of a worker, and with num_workers=0 there is "
            "none: give num_workers >= 1"
        )
    if source is not None:
        refuse_threads(source, f"decode_threads={threads}")


def takes_nothing(collate_fn: Callable[[list[Any]], Any] | None) -> bool:
    """Return whether a collate function makes a batch of no samples; torch's default does not.

    >>> takes_nothing(None), takes_nothing(list)
    (False, True)
    """
    try:
        (collate_fn or default_collate)([])
    except Exception:  # whatever it raises, it would raise in the middle of an epoch
        return False
    return True


@dataclass(frozen=True, slots=True)
class GivenOrder:
    """The order that a sampler and a generator give; None where they give none.

    follows: the DistributedSampler whose epoch is read at each iteration.
    """

    shuffle: bool | None
    seed: int | None = None
    follows: DistributedSampler[Any] | None = None


def read_order(
    dataset: Any, sampler: Any, batch_sampler: Any, generator: Any, shuffle: bool | None
) -> GivenOrder:
    """Return the order that torch's arguments ask for; ValueError with the line to write instead.

    >>> read_order([1, 2], SequentialSampler([1, 2]), None, None, None)
    GivenOrder(shuffle=False, seed=None, follows=None)
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
    kind = type(sampler)  # subclasses may do anything
    if kind is SubsetRandomSampler:
        raise ValueError(
            f"{OWN}: write DataLoader(torch.utils.data.Subset(data, indices), shuffle=True, ...) "
            "in place of SubsetRandomSampler(indices)"
        )
    if kind not in (RandomSampler, DistributedSampler, SequentialSampler):
        raise ValueError(
            f"{OWN}, and sampler is a {kind.__name__}: leave it and write shuffle=True, or "
            "DataLoader(torch.utils.data.Subset(data, list(sampler)), shuffle=False, ...) for its "
            "order; weights of sources are those of cp.Mixture({'a': (data, 3), 'b': (more, 1)})"
        )
    data = sampler.dataset if kind is DistributedSampler else sampler.data_source
    if kind is RandomSampler and (sampler.replacement or sampler.num_samples != len(data)):
        raise ValueError(
            f"{OWN}, each sample once an epoch: leave replacement and num_samples of "
            "RandomSampler, and write shuffle=True"
        )
    if len(data) != len(dataset):
        raise ValueError(
            f"the sampler is of {len(data)} samples, and the data set has {len(dataset)}: make it "
            "of the same data, or leave it and write shuffle=True"
        )
    if kind is DistributedSampler:
        if seed not in (None, sampler.seed):
            raise ValueError(
                f"DistributedSampler's seed is {sampler.seed}, and generator's {seed}: leave "
                "generator"
            )
        return GivenOrder(sampler.shuffle, sampler.seed, sampler)
    if kind is RandomSampler:
        own_seed = None if sampler.generator is None else sampler.generator.initial_seed()
        return GivenOrder(True, seed if own_seed is None else own_seed)
    return GivenOrder(False, seed)


def take_seed(balance: Balance, order: GivenOrder) -> Balance:
    """Return the balance with an order's seed, if it has one; ValueError for two seeds."""
    if order.seed is None:
        return balance
    if balance.seed not in (DEFAULTS.seed, order.seed):
        raise ValueError(
            f"Balance(seed={balance.seed}) and the seed of sampler or generator, {order.seed}, "
            "contradict each other: leave one of them"
        )
    return replace(balance, seed=order.seed)


def choose_ranks(ranks: Ranks, order: GivenOrder) -> Ranks:
    """Return the ranks that a DistributedSampler says, or those given; ValueError for both."""
    sampler: Any = order.follows
    if sampler is None:
        return ranks
    if ranks.of is not None or ranks.virtual is not None:
        raise ValueError(
            "DistributedSampler says which rank this process plays, and ranks too: leave the "
            "sampler, and write shuffle=True"
        )
    return replace(ranks, of=(sampler.rank, sampler.num_replicas))
