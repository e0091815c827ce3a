"""A ledger goes on with the costs that it was planned with, or where they decide nothing; or not.

Each case is a random ledger and a random loader that it is given to: other modes, numbers of ranks,
cost functions, tables, transforms, data and seeds. What follows is right, each sample of the epoch
comes once, or it is refused with the name of what differs: never other samples without a word.
"""

import io
import json
import random
import re
import tarfile
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from counterpoise.loader import LoaderError
from counterpoise.loader.assembly import BalancedSettings
from counterpoise.workers import TarDataset
from counterpoise.workers.sources.interface import Probe
from tests.flat_options import balanced_loader
from tests.loader.local.both_ways import by_coordinator

CASES = 120
SIZES = (40, 43)
REFUSED = re.compile(r"\b(costs?|data|samples|seed|mode|ranks|budgets|samples_per_step)\b")


class Texts:
    """Numbers that cost what their text has, by a tokenizer of some version."""

    def __init__(self, count: int, first: int, version: int) -> None:
        self.count, self.first, self.version = count, first, version

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if index >= self.count:
            raise IndexError(index)
        return self.first + index

    def tokens(self, sample: int) -> int:
        """Return what a sample costs: of a later version a few cost more, or all do."""
        tokens = 1 + sample * 7919 % 23
        return tokens + (self.version == 1 and sample % 10 == 0) + 2 * (self.version == 2)


class Keyed(Texts):
    """The same with keys and a probe, as a data set that tells costs from headers."""

    def key(self, index: int) -> str:
        """Return a sample's name."""
        return f"k{self.first + index}"

    def probe(self, index: int) -> Probe:
        """Return a sample's cost."""
        return Probe(self.key(index), {"tokens": self.tokens(self.first + index)}, 8)


class Tokenizer:
    """A transform of shards' texts, of some version."""

    def __init__(self, version: int) -> None:
        self.version = version

    def probe(self, raw: dict) -> Probe:
        """Return a sample's cost."""
        extra = (self.version == 1 and int(raw["__key__"]) % 10 == 0) + 2 * (self.version == 2)
        return Probe(raw["__key__"], {"tokens": len(raw["txt"]) + extra}, 64)

    def __call__(self, raw: dict) -> int:
        """Return the number of a sample."""
        return int(raw["__key__"])


@dataclass(frozen=True)
class Loader:
    """What a loader is made of. kind: of data and costs; version: of what samples cost."""

    kind: str
    mode: str
    ranks: int
    accumulate: int | str
    count: int
    first: int
    version: int
    seed: int
    budget: int

    @classmethod
    def drawn(cls, draw: random.Random) -> "Loader":
        """Draw one."""
        return cls(
            kind=draw.choice(("table", "function", "probe", "tar")),
            mode=draw.choice(("exact", "window", "epoch")),
            ranks=draw.choice((1, 2, 4)),
            accumulate=draw.choice((2, "auto")),
            count=draw.choice(SIZES),
            first=0,
            version=draw.randrange(3),
            seed=draw.randrange(2),
            budget=draw.choice((60, 75)),
        )

    def later(self, draw: random.Random) -> "Loader":
        """Return one that differs in most cases in one or two things, most often in costs."""
        changes: dict[str, Any] = {
            "version": (self.version + draw.randrange(3)) % 3,
            "ranks": draw.choice((1, 2, 4)),
            "count": draw.choice(SIZES),
            # Data without keys, of one class and size, are not told apart.
            "first": draw.randrange(2) if self.kind == "probe" else 0,
            "seed": draw.randrange(2),
            "budget": draw.choice((60, 75)),
            "mode": draw.choice(("exact", "window", "epoch")),
        }
        names = {"version"} if draw.random() < 0.7 else set()
        names |= {*draw.sample(sorted(changes), 1)} if draw.random() < 0.4 else set()
        return replace(self, **{name: changes[name] for name in names})

    def open(self, folder):
        """Return the loader."""
        texts = Texts(self.count, self.first, self.version)
        table = np.array([texts.tokens(self.first + k) for k in range(self.count)])
        data: Any = texts
        costs: dict[str, Any] = {}
        if self.kind == "table":
            costs = {"cost": {"tokens": table}}
        elif self.kind == "function":
            costs = {"cost": lambda sample: {"tokens": texts.tokens(sample)}}
        elif self.kind == "tar":
            where = folder / str(self.count)
            data = TarDataset(str(where / "*.tar"), Tokenizer(self.version), cache=where)
        else:
            data = Keyed(self.count, self.first, self.version)
        return balanced_loader(
            data, grouping="balanced", budgets={"tokens": self.budget}, mode=self.mode,
            accumulate=self.accumulate, samples_per_step=8, virtual_ranks=self.ranks, shuffle=True,
            seed=self.seed, layout="torch", collate_fn=list, **costs,
        )  # fmt: skip


def outcome(number: int, folder) -> str:
    """Return "right", "refused", "impossible" for what cannot be planned, else what is wrong."""
    draw = random.Random(number)
    first = Loader.drawn(draw)
    second = first.later(draw)
    try:
        before, ledger = some(first.open(folder), draw)
    except LoaderError as error:
        return "impossible" if "do not fit" in str(error) else f"unclear: {error}"
    loader = second.open(folder)
    try:
        loader.load_state_dict(json.loads(json.dumps(ledger)))
        after = [sample for batch in loader for sample in batch]
    except (ValueError, LoaderError) as error:
        if "do not fit" in str(error):
            return "impossible"
        return "refused" if REFUSED.search(str(error)) else f"unclear: {error}"
    found = Counter(before + after)
    right = set(range(second.first, second.first + second.count))
    if set(found) == right and set(found.values()) == {1}:
        return "right"
    return f"{first} with a ledger of {ledger} to {second}: {found}"


def some(loader, draw):
    """Take some microbatches or steps of an epoch; return their samples and the ledger."""
    taken, found = draw.randrange(1, 16), []
    if draw.random() < 0.5:
        for step, _ in zip(loader.steps(), range(taken), strict=False):
            found += [sample for batch in step.microbatches for sample in batch]
            ledger = loader.state_dict()
    else:
        for batch, _ in zip(loader, range(taken), strict=False):
            found += batch
            ledger = loader.state_dict()
    return ([] if ledger["epoch"] else found), ledger


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with shards of each size."""
    path = tmp_path_factory.mktemp("shards")
    for count in SIZES:
        (path / str(count)).mkdir()
        for shard in range(2):
            with tarfile.open(path / str(count) / f"{shard}.tar", "w") as tar:
                for sample in range(shard * count // 2, (shard + 1) * count // 2):
                    info = tarfile.TarInfo(f"{sample:04}.txt")
                    info.size = 1 + sample * 7919 % 23
                    tar.addfile(info, io.BytesIO(b"t" * info.size))
    return path


@pytest.mark.parametrize("by", ["a local loop", "a coordinator"])
def test_a_ledger_of_other_costs_goes_on_rightly_or_is_refused_by_name(by, folder, monkeypatch):
    if by == "a coordinator":
        monkeypatch.setattr(BalancedSettings, "_connection", by_coordinator)
    found = Counter(outcome(number, folder) for number in range(CASES))
    assert set(found) <= {"right", "refused", "impossible"}, found
    assert min(found["right"], found["refused"]) > CASES // 5, found
