"""Random loaders, and a reference for what they deliver; see test_delivered.py."""

import itertools
import json
import random
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from counterpoise import OnError, Ranks
from counterpoise.balancer.planning.problem.shuffle import permutation
from counterpoise.loader import DataLoader, LoaderError, StepInfo
from tests.flat_options import flat_balance

TIMES = {"attention_pairs": 10}
IGNORED = -100


@dataclass(frozen=True)
class Data:
    """Samples of some lengths, of which some cannot be read."""

    sizes: tuple[int, ...]
    broken: frozenset[int]
    in_fields: bool

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Any:
        if index in self.broken:
            raise ValueError("cannot be read")
        ids = np.arange(1, self.sizes[index] + 1)
        return {"input_ids": ids, "labels": ids} if self.in_fields else torch.tensor(index)


def masked(samples: list[Any]) -> dict[str, Any]:
    """Collate as loops that pad and mask labels themselves; raises for no samples."""
    longest = max(len(each["labels"]) for each in samples)
    rows = [np.pad(each["labels"], (0, longest - len(each["labels"]))) for each in samples]
    labels = torch.from_numpy(np.stack(rows))
    return {"labels": torch.where(labels % 3 == 0, IGNORED, labels)}


COLLATES: dict[str, Any] = {"list": list, "masked": masked}


@dataclass(frozen=True)
class Setting:
    """What a loader is made of. budget: 0 for none; collate: "list" takes an empty list.

    stop: another loader goes on after so many microbatches; 0: none does.
    """

    data: Data
    ranks: int
    batch_size: int
    samples_per_step: int
    accumulate: Any
    collate: str
    skips: bool
    drop_last: bool
    shuffle: bool
    budget: int
    options: dict[str, Any]
    workers: int
    stop: int

    @property
    def is_auto(self) -> bool:
        return self.options.get("grouping") == "auto"

    @property
    def microbatches(self) -> int:
        """The fewest microbatches of a step, of all ranks."""
        return self.ranks * (1 if self.accumulate == "auto" else self.accumulate)

    @property
    def takes_empty(self) -> bool:
        return self.collate not in ("torch", "masked")

    @property
    def refused(self) -> set[int]:
        over = {i for i, size in enumerate(self.data.sizes) if self.budget and size > self.budget}
        return over if self.options.get("oversize") == "refuse" else set()

    def loader(self, letters: Path) -> DataLoader:
        given = dict(self.options)
        if not self.is_auto:
            given["samples_per_step"] = self.samples_per_step
        if self.budget:
            given["budgets"] = {"tokens": self.budget}
        if self.collate in ("padded", "packed"):
            given["layout"] = self.collate
        is_counted = self.is_auto or given.get("grouping") == "fixed"
        return DataLoader(
            self.data,
            balance=flat_balance(accumulate=self.accumulate, **given),
            cost={"tokens": list(self.data.sizes)},
            collate_fn=COLLATES.get(self.collate),
            num_workers=self.workers,
            batch_size=self.batch_size if is_counted else 1,
            on_error=OnError(
                "skip" if self.skips else "raise", dead_letter=str(letters) if self.skips else None
            ),
            ranks=Ranks(virtual=self.ranks),
            drop_last=self.drop_last,
            shuffle=self.shuffle,
        )


def make(seed: int) -> Setting:
    """Return a setting that no check of arguments refuses."""
    r = random.Random(seed)
    ranks, rows = r.randint(1, 7), r.randint(1, 3)
    count = r.randint(ranks, 70)
    sizes = tuple(r.choice((r.randint(1, 9), 5, 8)) for _ in range(count))
    share = r.choice((0, 0, 0.05, 0.3, 0.9))
    broken = frozenset(i for i in range(count) if r.random() < share)
    batch_size = r.randint(1, 3)
    kind = r.choice(("auto", "counted", *["balanced"] * 6))
    collate = r.choice(("torch", "list", "padded", "packed", "masked"))
    mode = r.choice(("exact", "exact", "window", "epoch"))
    accumulate: Any = rows
    budget, options = 0, dict[str, Any](seed=r.randint(0, 9))
    if kind == "auto":
        mode = "exact"
        options |= {"grouping": "auto", "counts": r.choice((None, "free", "equal"))}
        options |= {} if collate in ("padded", "packed") else {"work": "packed"}
    elif kind == "counted":
        mode, options["grouping"] = "exact", "fixed"
    else:
        accumulate = r.choice(("auto", rows))
        budget = 0 if mode == "exact" and r.random() < 0.3 else r.choice((4, 9, 9, 15, 20))
        options |= {"oversize": r.choice(("alone", "refuse")), "waits": r.choice((None, "step"))}
        options["work"] = "packed" if mode == "epoch" or r.random() < 0.6 else "padded"
        if collate in ("padded", "packed"):
            options["work"] = collate
            if mode == "epoch":
                collate = options["work"] = "packed"
        if mode != "epoch" and r.random() < 0.3:
            options["time_ns"] = {"tokens": 2, "attention_pairs": 1}
    if collate == "masked":
        options["label_tokens"] = "batch"
    size = ranks * rows * batch_size
    if kind == "balanced" and collate in ("list", "padded", "packed"):
        size = r.randint(1, size)
    elif kind == "balanced":
        size += r.randint(0, 5)
    return Setting(
        Data(sizes, broken, collate != "torch"), ranks,
        batch_size, size, accumulate, collate, r.random() < 0.8, r.random() < 0.2,
        mode != "exact" or r.random() < 0.8, budget, options | {"mode": mode},
        r.choice((1, 2)) if r.random() < 0.04 else 0, r.choice((0, 0, r.randint(1, 40))),
    )  # fmt: skip


@dataclass
class Expected:
    """The samples of each step, of all holes, and of no step."""

    steps: list[set[int]] = field(default_factory=list)
    holes: set[int] = field(default_factory=set)
    left_out: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)


def reference(setting: Setting) -> Expected:
    """Return what mode "exact" delivers."""
    found, size, count = Expected(), setting.samples_per_step, len(setting.data)
    order = permutation(count, setting.options["seed"], 0, setting.shuffle).tolist()
    bad = setting.data.broken | setting.refused
    may_lack = setting.takes_empty or setting.is_auto or setting.accumulate == "auto"
    for start in range(0, count, size):
        step = order[start : start + size]
        kept = len(step) if len(step) == size else last(setting, len(step))
        (found.dropped if setting.drop_last else found.left_out).update(step[kept:])
        step = step[:kept]
        usable = {*step} - bad
        if step and not may_lack and len(usable) < setting.microbatches:
            usable = set()
        found.holes |= {*step} - usable
        may_be_empty = not is_even(setting) if setting.is_auto else setting.takes_empty
        if step and (usable or may_be_empty):
            found.steps.append(usable)
    return found


def is_even(setting: Setting) -> bool:
    return setting.is_auto and setting.options["counts"] != "free" and setting.shuffle


def last(setting: Setting, samples: int) -> int:
    """Return how many samples of a last step that is not whole are in it."""
    if setting.drop_last:
        return 0
    if is_even(setting):
        rows = max(1, min(setting.microbatches // setting.ranks, samples // setting.ranks))
        return samples - samples % (setting.ranks * rows) if samples >= setting.ranks else 0
    may_lack = setting.takes_empty or setting.is_auto
    return samples if may_lack or samples >= setting.microbatches else 0


def delivered(setting: Setting, loader: DataLoader) -> Iterator[tuple[Any, StepInfo]]:
    """Yield what a loader delivers: in steps, or up to where another one goes on."""
    if not setting.stop:
        for step in loader.steps():
            yield from zip(step.microbatches, step.infos, strict=True)
        return
    yield from itertools.islice(loader.with_info(), setting.stop)


def faults(setting: Setting, folder: Path) -> Iterator[str]:
    """Yield in what a loader's epoch is wrong."""
    folder.mkdir()
    loader, came = setting.loader(folder / "0"), list[tuple[Any, StepInfo]]()
    knows_all = True
    try:
        came.extend(delivered(setting, loader))
        ledger = json.loads(json.dumps(loader.state_dict()))
        if not ledger["epoch"]:
            loader.close()
            loader = setting.loader(folder / "1")
            loader.load_state_dict(ledger)
            went_on = [*loader.with_info()]
            came += went_on
            # Of the last step's end nobody says once more what was left out then.
            knows_all = bool(went_on)
    except (LoaderError, ValueError) as error:  # a data set's own comes as it was raised
        yield from unexpected(setting, "".join(traceback.format_exception_only(error)))
        return
    finally:
        loader.close()
    grouped = dict[int, list[tuple[Any, StepInfo]]]()
    for batch, info in came:
        grouped.setdefault(info.step, []).append((batch, info))
    for number, step in grouped.items():
        yield from (f"step {number}: {fault}" for fault in step_faults(setting, step))
    infos = [info for _, info in came]
    names = [int(key) for info in infos for key in info.keys]
    holes = {int(key) for info in infos for key in info.holes}
    told = [[json.loads(line)["key"] for line in each.open()] for each in folder.iterdir()]
    if any(len(each) != len({*each}) for each in told):
        yield "a dead letter came twice"
    named = {int(key) for each in told for key in each}
    if not holes <= named and setting.skips:
        yield f"holes without a letter: {sorted(holes - named)}"
    holes |= named
    if len(names) != len({*names}) or {*names} & holes:
        yield "a sample came twice"
    bad = setting.data.broken | setting.refused
    if {*names} & bad:
        yield f"delivered, and cannot be: {sorted({*names} & bad)}"
    missing = {*range(len(setting.data))} - {*names} - holes
    if not setting.skips and setting.data.broken - missing - setting.refused:
        yield "no error, though a sample is broken"
    unnamed = len(missing) - (loader.left_out - len(holes))
    if unnamed and knows_all and not (setting.drop_last and unnamed > 0):
        yield f"{sorted(missing)} are missing, and left_out is {loader.left_out}"
    steps = [{int(key) for _, info in step for key in info.keys} for step in grouped.values()]
    if setting.options["mode"] == "exact":
        yield from differences(reference(setting), steps, holes, missing, setting.skips)
    else:
        yield from lost(setting, steps, holes, missing)


def step_faults(setting: Setting, step: Sequence[tuple[Any, StepInfo]]) -> Iterator[str]:
    """Yield in what the microbatches of a step are wrong."""
    infos = [info for _, info in step]
    if {info.step_samples for info in infos} != {sum(len(info.keys) for info in infos)}:
        yield f"weights of {infos[0].step_samples}"
    if {info.step_label_tokens for info in infos} != {sum(info.label_tokens for info in infos)}:
        yield f"weights of {infos[0].step_label_tokens} label tokens"
    if len(infos) != setting.ranks * infos[0].microbatches:
        yield f"{len(infos)} microbatches"
    for batch, info in step:
        alone = len(info.keys) == 1
        if setting.budget and not alone and info.costs["tokens"] > setting.budget:
            yield f"{info.costs['tokens']} tokens"
        if setting.collate == "torch" and len(batch) != max(1, len(info.keys)):
            yield f"a batch of {len(batch)}"
        if setting.collate == "masked":
            bears = int((batch["labels"][:, 1:] != IGNORED).sum()) if info.keys else 0
            if info.label_tokens != bears:
                yield f"{info.label_tokens} label tokens, the batch has {bears}"


def differences(
    expected: Expected, steps: Sequence[set[int]], holes: set[int], missing: set[int], skips: bool
) -> Iterator[str]:
    if list(steps) != expected.steps:
        yield f"steps of {[*map(len, steps)]}, not {[*map(len, expected.steps)]}"
    # Without a dead-letter file nobody is told the names in a step of which nothing is delivered.
    unseen = set() if skips else expected.holes - holes
    if holes != expected.holes - unseen:
        yield f"holes {sorted(holes)}, not {sorted(expected.holes)}"
    if missing != expected.left_out | expected.dropped | unseen:
        yield f"missing {sorted(missing)}"


def lost(
    setting: Setting, steps: Sequence[set[int]], holes: set[int], missing: set[int]
) -> Iterator[str]:
    """Yield what mode "window" or "epoch" has left out and should not have."""
    bad = setting.data.broken | setting.refused
    may_lack = setting.takes_empty or setting.accumulate == "auto"
    if (may_lack or not bad) and holes - bad:
        yield f"usable, and holes: {sorted(holes - bad)}"
    if not steps or not setting.skips:  # nobody is told the names of those that are refused
        missing = missing - setting.refused
    if not setting.drop_last and len(missing) >= setting.microbatches:
        yield f"{len(missing)} missing"
    if not setting.drop_last and setting.takes_empty and missing:
        yield f"{len(missing)} missing, and batches may be empty"
    # What is dropped fits into one step, by its number or its budgets.
    tokens = sum(min(setting.data.sizes[each], setting.budget) for each in missing)
    is_more = tokens > setting.microbatches * setting.budget
    if setting.drop_last and len(missing) > setting.samples_per_step and is_more:
        yield f"{len(missing)} dropped"


def unexpected(setting: Setting, error: str) -> Iterator[str]:
    """Yield an error that should not have come."""
    if "do not fit the budgets" in error and setting.budget and setting.accumulate != "auto":
        return
    if "samples from ordinal" in error and len(setting.data.broken) == len(setting.data):
        return
    broken = [i for i in setting.data.broken if f"sample '{i}'" in error]
    if setting.skips or not broken:
        yield error
