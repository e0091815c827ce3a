"""Describes what decides a sampler's order, so that another order is noticed when resuming.

A plain loader goes on by beginning its sampler again and skipping what was handed out. That is
right only if the sampler draws the same order again, which is up to the caller: the same kind of
sampler, seeded again, in the same epoch. The description has all of this that can be seen from
outside. (The default shuffle's seed is in the ledger, and stateful samplers are restored.)
"""

import hashlib
from typing import Any

import torch
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from .seeds import own_shuffler

# What samplers call the settings that change their order; a rank's own number is none of them.
_SETTINGS = (
    *("replacement", "shuffle", "drop_last", "batch_size", "num_replicas"),
    *("seed", "initial_seed", "epoch"),
)
# They draw from their generator as it stands; other samplers may seed theirs when they begin.
_DRAWING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_DEPTH = 3


def describe_order(sampler: Any, depth: int = _DEPTH) -> str:
    """Return a sampler's class and all that can be seen of its order.

    >>> describe_order(torch.utils.data.SequentialSampler(range(3)))
    'SequentialSampler()'
    >>> describe_order(RandomSampler(range(3)))
    'RandomSampler(replacement=False)'
    """
    # A BalancedBatchSampler raises for batch_size, which frameworks read before they shard it.
    names = [n for n in _SETTINGS if n != "batch_size" or not hasattr(sampler, "is_planned")]
    found = {name: getattr(sampler, name, None) for name in names}
    told = [f"{name}={value}" for name, value in found.items() if type(value) in (bool, int)]
    if type(sampler) in _DRAWING and own_shuffler(sampler) is None:
        told.append(f"generator at {_digest(sampler.generator)}")
    inner = getattr(sampler, "sampler", None)
    if inner is not None and inner is not sampler and depth:
        told.append(f"sampler={describe_order(inner, depth - 1)}")
    return f"{type(sampler).__name__}({', '.join(told)})"


def check_same_order(then: str | None, now: str, batches: int) -> None:
    """Raise ValueError if batches were drawn from an order that a sampler will not draw again."""
    if then is not None and then != now:
        raise ValueError(
            f"the ledger's order was {then} and is {now}: {batches} batches were handed out in "
            "that order, and what follows would be other samples; give the same sampler, seeded "
            "again as it was, in the same epoch (set_epoch), or begin the epoch again"
        )


def _digest(generator: torch.Generator | None) -> str:
    state = torch.get_rng_state() if generator is None else generator.get_state()
    return hashlib.blake2b(state.numpy().tobytes(), digest_size=4).hexdigest()
