"""Random (ledger, later configuration) pairs of plain loops: the uninterrupted rest, or refused."""

import itertools
import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from counterpoise.loader import DataLoader
from tests.loader.resume.resume_data import through_json

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
SAMPLERS = ["none", "shuffle", "random", "replaced", "weighted", "subset", "distributed", "batches"]
DATA = ["list", "range", "reversed", "bare", "stateful"]


class Bare(IterableDataset):
    """This worker's numbers; no state."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        info = get_worker_info()
        number, of = (0, 1) if info is None else (info.id, info.num_workers)
        yield from range(number, self.count, of)


class Stateful(Bare):
    """The same, with a state that is kept until the next is loaded."""

    start = at = 0

    def __iter__(self):
        for self.at, found in enumerate(super().__iter__(), 1):
            if self.at > self.start:
                yield found

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.start = state["at"]


@dataclass(frozen=True)
class Setting:
    """What decides a loop. generator: a seed of its own; epoch: that a DistributedSampler is at."""

    data: str
    count: int
    batch_size: int
    sampler: str
    generator: int | None
    workers: int
    persistent: bool
    seed: int
    epoch: int
    drop_last: bool


# What may change inside an epoch; of a stream not the workers.
HARMLESS = {"workers", "persistent", "seed"}
MOST_REFUSED = 0.6


def draw(rng):
    """Return a setting, where and how often its loop is left, and the later setting."""
    data = rng.choice(DATA)
    stream = data in ("bare", "stateful")
    now = Setting(
        data=data, count=rng.randint(4, 30), batch_size=rng.randint(1, 5),
        sampler="none" if stream else rng.choice(SAMPLERS), generator=rng.choice([None, 5]),
        workers=rng.choice([0] * 12 + [1, 2]), persistent=rng.random() < 0.3, seed=3,
        epoch=rng.randrange(2), drop_last=rng.random() < 0.2,
    )  # fmt: skip
    others: dict[str, Any] = {
        "data": rng.choice([each for each in DATA if (each in ("bare", "stateful")) == stream]),
        "count": rng.randint(4, 30), "batch_size": rng.randint(1, 5),
        "sampler": now.sampler if stream else rng.choice(SAMPLERS),
        "generator": rng.choice([None, 5, 6]), "workers": rng.choice([0, 0, 0, 1, 2]),
        "persistent": rng.random() < 0.5, "seed": rng.randrange(9), "epoch": rng.randrange(2),
    }  # fmt: skip
    if stream:
        del others["count"]  # nobody knows how long a stream is
    changed = rng.sample(sorted(others), rng.choice([0, 1, 1, 2, 3]))
    return now, replace(now, **{name: others[name] for name in changed})


def make(setting):
    """Return the loader of a script that seeds itself."""
    torch.manual_seed(setting.seed)
    count, given = setting.count, setting.generator
    generator = None if given is None else torch.Generator().manual_seed(given)
    data: Any = {
        "list": lambda: list(range(count)),
        "range": lambda: range(count),
        "reversed": lambda: list(range(count))[::-1],
        "bare": lambda: Bare(count),
        "stateful": lambda: Stateful(count),
    }[setting.data]()
    batches = {"batch_size": setting.batch_size, "drop_last": setting.drop_last}
    options: dict[str, Any] = {
        "none": lambda: batches,
        "shuffle": lambda: batches | {"shuffle": True},
        "random": lambda: batches | {"sampler": RandomSampler(data, generator=generator)},
        "replaced": lambda: batches | {"sampler": RandomSampler(data, True, generator=generator)},
        "weighted": lambda: batches | {
            "sampler": WeightedRandomSampler([1.0] * count, count, generator=generator)},
        "subset": lambda: batches | {"sampler": SubsetRandomSampler(range(count), generator)},
        "distributed": lambda: batches | {"sampler": DistributedSampler(data, 1, 0)},
        "batches": lambda: {"batch_sampler": BatchSampler(
            RandomSampler(data, generator=generator), setting.batch_size, setting.drop_last)},
    }[setting.sampler]()  # fmt: skip
    workers = {"num_workers": setting.workers}
    if setting.workers:
        workers["persistent_workers"] = setting.persistent
    loader = DataLoader(data, generator=generator, collate_fn=list, **options, **workers)
    loader.set_epoch(setting.epoch)
    return loader


def judge(seed):
    """Return how a pair ends, "right" or "refused"; AssertionError for all that is neither."""
    rng = random.Random(seed)
    before, now = draw(rng)
    loader = make(before)
    for _ in range(rng.choice([0, 0, 1, 2])):
        list(loader)
    iterator = iter(loader)
    asked = rng.randint(0, before.count // before.batch_size + 1)
    had = list(itertools.islice(iterator, asked))
    ended = len(had) < asked or rng.random() < 0.2
    if ended:
        list(iterator)
    state = loader.state_dict()
    state = state if before.data == "stateful" else through_json(state)
    rest, following = list(iterator), list(loader)
    loader.close()
    changed = {name for name in vars(Setting)["__annotations__"] if differs(before, now, name)}
    is_moved = "workers" in changed and before.data in ("bare", "stateful")
    changed -= HARMLESS
    resumed = make(now)
    try:
        resumed.load_state_dict(state)
        found = list(resumed)
    except ValueError:
        assert changed or is_moved, (seed, before, now)
        return "refused"
    finally:
        resumed.close()
    # Between epochs another setting has an order of its own.
    is_free = (ended or not had) and (changed or is_moved)
    assert is_free or found == (following if ended else rest), (seed, before, now)
    return "right"


def differs(before, now, name):
    return getattr(before, name) != getattr(now, name)


def judge_all(seeds):
    ends = [judge(seed) for seed in seeds]
    assert 0.1 < ends.count("refused") / len(ends) < MOST_REFUSED


def test_fifty_pairs_are_right_or_refused():
    judge_all(range(50))


@pytest.mark.long
def test_a_thousand_pairs_are_right_or_refused():
    judge_all(range(1000, 2000))
