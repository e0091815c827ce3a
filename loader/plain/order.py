"""Foresees and describes the order of a plain loader: what torch draws it from, and the sampler.

A plain loader goes on by beginning its sampler again and skipping what was handed out. That is
right only if the sampler draws the same order again. torch's random samplers draw from a generator,
as do the workers' seeds: its state, as it was when the sampler began, is in the ledger. A generator
that was given is set to it. torch's own is the script's: if that is elsewhere, as where a script
has seeded itself again, one of ours takes its place in this loader. What other samplers are seeded
with is up to the caller; the description has all of it that can be seen from outside.
"""

import base64
import contextlib
import functools
import zlib
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    IterableDataset,
    IterDataPipe,
    MapDataPipe,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from ...workers.sources.data_identity import KnownData

# Samplers' names of settings that change their order; a rank's own number is none of them.
_SETTINGS = (
    *("replacement", "shuffle", "drop_last", "batch_size", "num_replicas"),
    *("seed", "initial_seed", "epoch"),
)
# They draw from their generator as it stands; other samplers may seed theirs when they begin.
_DRAWING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_DEPTH = 3


def inner_sampler(index_sampler: Any) -> Any:
    """Return the sampler that indices are drawn from: the one inside torch's own batches."""
    batched = type(index_sampler) is BatchSampler
    return index_sampler.sampler if batched else index_sampler


def drawing_sampler(sampler: Any) -> Any:
    """Return torch's random sampler in a sampler, or in what that wraps; None for others."""
    for _ in range(_DEPTH):
        if type(sampler) in _DRAWING or own_shuffler(sampler) is not None:
            return sampler
        sampler = getattr(sampler, "sampler", None)
    return None


def own_shuffler(sampler: Any) -> RandomSampler | None:
    """Return the sampler if it draws its seed from torch's own generator, else None."""
    return sampler if isinstance(sampler, RandomSampler) and sampler.generator is None else None


def find_generators(loader: Any, stand_in: torch.Generator) -> list[torch.Generator]:
    """Return what seeds of workers are drawn from, and what the order is, if that is another.

    stand_in: what stands for torch's own generator. None where nothing that is drawn matters.
    """
    sampler = drawing_sampler(loader._index_sampler)
    pipes = isinstance(loader.dataset, IterDataPipe | MapDataPipe)  # torch draws more for them
    if pipes or (sampler is None and not loader.num_workers):
        return []
    workers = stand_in if loader.generator is None else loader.generator
    order = workers if sampler is None else sampler.generator
    order = stand_in if order is None else order
    return [workers] if order is workers else [workers, order]


def foresee(
    loader: Any, stand_in: torch.Generator, has_seed: bool
) -> tuple[int, int, tuple[bytes, ...]]:
    """Return what an iterator would draw now: workers' seed, shuffle's, and states between them.

    has_seed: whether the workers' has been drawn. Generators stay as they are.
    """
    workers = stand_in if loader.generator is None else loader.generator
    before = stand_in.get_state(), workers.get_state()
    seed = 0 if has_seed else draw_seed(workers)
    states = read_states(find_generators(loader, stand_in))
    shuffle = draw_seed(stand_in)
    stand_in.set_state(before[0])
    workers.set_state(before[1])
    return seed, shuffle, states


def read_states(generators: list[torch.Generator]) -> tuple[bytes, ...]:
    """Return the states of generators as they are now."""
    return tuple(generator.get_state().numpy().tobytes() for generator in generators)


def take_place(states: list[torch.Tensor], loader: Any) -> torch.Generator:
    """Set the generators of a loader to states; return what then stands for torch's own."""
    standard = stand_in = torch.default_generator
    for generator, state in zip(find_generators(loader, stand_in), states, strict=False):
        if generator is standard:
            before = standard.get_state()
            draw_seed(standard)  # as for the workers
            is_there = torch.equal(before, state) or torch.equal(standard.get_state(), state)
            standard.set_state(before)
            generator = stand_in = standard if is_there else torch.Generator()
        generator.set_state(state)
    return stand_in


@functools.lru_cache(maxsize=8)
def pack_state(state: bytes) -> str:
    """Return a generator's state as text, 3.2 KB; `unpack_state` reads it.

    >>> state = torch.Generator().manual_seed(7).get_state()
    >>> torch.equal(unpack_state(pack_state(state.numpy().tobytes())), state)
    True
    """
    # Its words have 32 bits, in 64.
    halves = np.frombuffer(state, np.uint32).reshape(-1, 2).T.tobytes()
    return base64.b85encode(zlib.compress(halves)).decode()


def unpack_state(text: str) -> torch.Tensor:
    """Return a generator's state; ValueError for what is none."""
    try:
        halves = zlib.decompressobj().decompress(base64.b85decode(text), 1 << 16)
        state = np.frombuffer(halves, np.uint32).reshape(2, -1).T.copy().view(np.uint8).ravel()
        tensor = torch.from_numpy(state)
        torch.Generator().set_state(tensor)
    except (ValueError, zlib.error, RuntimeError) as error:
        raise ValueError(f"ledger.generators has no state of a torch.Generator: {error}") from None
    return tensor


def draw_seed(generator: torch.Generator) -> int:
    """Return a seed, drawn as torch does."""
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
    settings = {name: getattr(sampler, name, None) for name in names}
    facts = [f"{name}={value}" for name, value in settings.items() if type(value) in (bool, int)]
    if type(sampler) is RandomSampler and own_shuffler(sampler) is None:
        facts.append("generator")  # whose state is the ledger's; the default seeds one
    data = getattr(sampler, "data_source", None)  # which may be ordered by its own epoch
    if hasattr(data, "set_epoch") and type(epoch := getattr(data, "epoch", None)) is int:
        facts.append(f"data.epoch={epoch}")
    inner = getattr(sampler, "sampler", None)
    if inner is not None and inner is not sampler and depth:
        facts.append(f"sampler={describe_order(inner, depth - 1)}")
    return f"{type(sampler).__name__}({', '.join(facts)})"


def check_same_order(then: str | None, now: str, batches: int) -> None:
    """Raise ValueError if batches were drawn from an order that a sampler will not draw again."""
    if then is not None and then != now:
        raise ValueError(
            f"the ledger's order was {then} and is {now}: {batches} batches were handed out in "
            "that order, and what follows would be other samples; give the same sampler, seeded "
            "again as it was, in the same epoch (set_epoch), or begin the epoch again"
        )


def is_stream(dataset: Any) -> bool:
    """Return whether each worker reads a data set from the beginning, as its own stream."""
    return isinstance(dataset, IterableDataset) and not isinstance(dataset, IterDataPipe)


def known_data(dataset: Any) -> KnownData:
    """Return a dataset with its length, if it is map-style and has one; streams only guess it."""
    samples = None
    if not isinstance(dataset, IterableDataset):
        with contextlib.suppress(TypeError, NotImplementedError):  # of a base class, or no length
            samples = len(dataset)
    return KnownData(dataset, samples)


def read_batch_size(loader: Any) -> int | None:
    """Return the size of batches that torch's own sampler makes; None of a user's sampler."""
    batches = loader.batch_sampler
    return batches.batch_size if type(batches) is BatchSampler else loader.batch_size
