"""Foresees the seeds that torch draws for an iteration: of workers, and of the default shuffle."""

from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler


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
