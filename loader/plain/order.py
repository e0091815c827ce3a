"""Foresees and describes the order of a plain loader: the seeds that torch draws, and the sampler.

A plain loader goes on by beginning its sampler again and skipping what was handed out. That is
right only if the sampler draws the same order again, which is up to the caller: the same kind of
sampler, seeded again, in the same epoch. The description has all of this that can be seen from
outside. (The default shuffle's seed is in the ledger, and stateful samplers are restored.)
"""

import hashlib
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

# Samplers' names of settings that change their order; a rank's own number is none of them.
_SETTINGS = (
    *("replacement", "shuffle", "drop_last", "batch_size", "num_replicas"),
    *("seed", "initial_seed", "epoch"),
)
# They draw from their generator as it stands; other samplers may seed theirs when they begin.
_DRAWING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_DEPTH = 3


def drawn_from(index_sampler: Any) -> Any:
    """Return the sampler that indices are drawn from: the one inside torch's own batches."""
    batched = type(index_sampler) is BatchSampler
    return index_sampler.sampler if batched else index_sampler


def own_shuffler(sampler: Any) -> RandomSampler | None:
    """Return the sampler if it draws its seed from torch's global generator, else None."""
    own = isinstance(sampler, RandomSampler) and sampler.generator is None
    return sampler if own else None


def next_shuffle_seed(advance: bool = False) -> int:
    """Return the seed that a RandomSampler is about to draw; leave the generator as it was."""
    before = torch.get_rng_state()
    seed = _draw(None)
    if not advance:
        torch.set_rng_state(before)
    return seed


def next_seeds(generator: torch.Generator | None) -> tuple[int, int]:
    """Return the seeds of workers and shuffle that an iterator would draw now, in torch's order.

    `generator` is the loader's, which the workers' seed is drawn from. Generators stay as they are.
    """
    before = torch.get_rng_state()
    if generator is None:
        workers = _draw(None)
    else:
        own = generator.get_state()
        workers = _draw(generator)
        generator.set_state(own)
    shuffle = _draw(None)
    torch.set_rng_state(before)
    return workers, shuffle


def _draw(generator: torch.Generator | None) -> int:
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


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
        own = sampler.generator
        state = torch.get_rng_state() if own is None else own.get_state()
        digest = hashlib.blake2b(state.numpy().tobytes(), digest_size=4).hexdigest()
        told.append(f"generator at {digest}")
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
