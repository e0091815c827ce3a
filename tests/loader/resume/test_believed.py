"""No ledger is believed: what a field may be, what fits together, and of which data it is."""

import itertools
import json
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, SequentialSampler, Subset

from counterpoise import Ranks
from counterpoise.loader import Balance, BalancedBatchSampler, DataLoader, LoaderError
from counterpoise.loader.resume.ledger import with_digest
from tests.flat_options import balanced_loader
from tests.loader.resume import resume_data as made

COUNT = 48
NUMBERS: Any = range(24)  # a data set to torch, though not to its types
STEP = 8


class Named:
    """Samples with keys and costs; other names make other data."""

    def __init__(self, count=COUNT, name="k"):
        self.count, self.name = count, name

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index >= self.count:
            raise IndexError(index)
        return self.key(index)

    def key(self, index):
        return f"{self.name}{index}"


def balanced(dataset=None, mode="exact", **changes):
    given = {
        "grouping": "isf", "budgets": {"tokens": 20}, "accumulate": "auto", "mode": mode,
        "samples_per_step": STEP, "ranks": Ranks(virtual=2), "shuffle": True, "seed": 5,
        "cost": cost_of, "on_error": "skip", "layout": "torch", "collate_fn": list,
    }  # fmt: skip
    return balanced_loader(Named() if dataset is None else dataset, **(given | changes))


def cost_of(sample):
    return {"tokens": 1 + int(sample[1:]) % 7}


def plain(dataset=None, **changes):
    return DataLoader(list(range(24)) if dataset is None else dataset, 4, **changes)


def after(loader, batches):
    """Return the state of a loader after some batches, as JSON gives it back."""
    list(itertools.islice(loader, batches))
    return json.loads(json.dumps(loader.state_dict()))


def written(state, **changes):
    """Return a ledger with other values, as if it had been written so."""
    return with_digest({**state, **changes})


@pytest.fixture(scope="module")
def states():
    """A ledger of each kind in the middle of an epoch."""
    torch.manual_seed(0)
    sampler = BalancedBatchSampler({"tokens": [3] * 20}, Balance(budgets={"tokens": 9}))
    list(itertools.islice(sampler, 2))
    return {
        "exact": after(balanced(), 5),
        "window": after(balanced(mode="window"), 5),
        "plain": after(plain(shuffle=True), 2),
        "sampler": sampler.state_dict(),
    }


MAKE = {
    "exact": balanced,
    "window": lambda: balanced(mode="window"),
    "plain": lambda: plain(shuffle=True),
    "sampler": lambda: BalancedBatchSampler({"tokens": [3] * 20}, Balance(budgets={"tokens": 9})),
}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("exact", {"epoch": -1}), ("exact", {"epoch": True}), ("exact", {"epoch": 2**60}),
        ("exact", {"start": "8"}), ("exact", {"window_step": -1}), ("exact", {"step": 1.0}),
        ("exact", {"microbatch": -1}), ("exact", {"ranks": 0}), ("exact", {"unusable": 1}),
        ("exact", {"samples_per_step": 0}), ("exact", {"seed": "5"}), ("exact", {"shuffle": 1}),
        ("exact", {"samples": None}), ("exact", {"data": 3}), ("plain", {"batches": -1}),
        ("plain", {"batches": 2**40}), ("plain", {"batches": 7}), ("plain", {"batch_size": 0}),
        ("plain", {"batch_size": 8}), ("plain", {"seed": -4}), ("plain", {"seed": None}),
        ("plain", {"worker_seed": 2**70}), ("plain", {"order": "SequentialSampler()"}),
        ("plain", {"samples": -1}),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_refused_by_the_name_of_its_field(states, kind, changes):
    (name,) = changes
    with pytest.raises(ValueError, match=rf"{name}\b") as refused:
        MAKE[kind]().load_state_dict(written(states[kind], **changes))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("window", {"step": 30}, "the ledger is at step 30, but the window it stands in ends with"),
        ("exact", {"microbatch": 20}, "the ledger is at microbatch 20 of step 2, which has 1"),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_position_that_the_plan_does_not_have_ends_the_run(
    states, kind, changes, reason, workers
):
    loader = balanced(mode=kind, num_workers=workers)
    state = states[kind]
    loader.load_state_dict(written(state, digest=loader.state_dict()["digest"], **changes))
    with pytest.raises(LoaderError, match=reason):
        list(loader)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind, names in {
        "exact": ["holes", "left_out", "unusable", "digest", "planner", "mode", "ranks"],
        "window": ["start", "microbatch"], "plain": ["seed", "worker_seed", "batches", "left_out"],
        "sampler": ["given", "digest"],
    }.items() for name in names],
)  # fmt: skip
def test_a_field_that_was_changed_is_noticed_where_nothing_else_could_tell(states, kind, name):
    state = states[kind]
    value = {int: 1, str: "x", list: [0]}[type(state[name])]
    changed = value if isinstance(value, list) else state[name] + value
    with pytest.raises(ValueError, match=rf"ledger\.{name}\b|changed or damaged"):
        MAKE[kind]().load_state_dict(state | {name: changed})


@pytest.mark.parametrize("kind", MAKE)
def test_wrong_digits_are_refused(states, kind):
    state = states[kind]
    for digits in ("", None, state["check"][:-1], state["check"].replace(state["check"][0], "x")):
        with pytest.raises(ValueError, match="ledger"):
            MAKE[kind]().load_state_dict(state | {"check": digits})


# --- of which data it is


@pytest.mark.parametrize("kind", ["exact", "plain"])
@pytest.mark.parametrize("count", [20, 60])
def test_a_ledger_of_fewer_or_more_samples_is_refused_and_the_option_named(kind, count):
    make = balanced if kind == "exact" else plain
    state = after(make(Named()), 2)
    with pytest.raises(ValueError, match=rf"samples was 48 and is {count}.*growing_data=True"):
        make(Named(count)).load_state_dict(state)


def test_the_keys_of_a_balanced_loaders_data_are_compared():
    state = after(balanced(), 2)
    with pytest.raises(ValueError, match="its data was 'Named "):
        balanced(Named(name="j")).load_state_dict(state)


def test_data_of_another_class_are_refused():
    state = after(plain(range(24)), 2)
    with pytest.raises(ValueError, match=r"its data was 'range' and is 'list [0-9a-f]+'"):
        plain(list(range(24))).load_state_dict(state)


def test_the_fingerprint_of_a_hugging_face_dataset_is_compared():
    class Dataset(Named):
        _fingerprint = "a1"

    other = Dataset()
    other._fingerprint = "b2"
    for make in (plain, balanced):
        state = after(make(Dataset()), 2)
        make(Dataset()).load_state_dict(state)
        with pytest.raises(ValueError, match=r"its data was 'test.*Dataset a1' and is '.* b2'"):
            make(other).load_state_dict(state)


def test_a_split_at_random_is_not_another():
    one, other = (
        torch.utils.data.random_split(NUMBERS, [16, 8], torch.Generator().manual_seed(seed))[0]
        for seed in (1, 2)
    )
    state = after(plain(one), 2)
    plain(Subset(NUMBERS, list(one.indices))).load_state_dict(state)
    with pytest.raises(ValueError, match="its data was 'Subset"):
        plain(other).load_state_dict(state)


@pytest.mark.parametrize("make", [plain, lambda data, **k: balanced(data, cost=None, **k)])
def test_shards_may_move_but_not_become_others(tmp_path, make):
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        folder.mkdir()
        made.write_shards(folder)
    options = {"collate_fn": list, "on_error": "skip"}
    state = after(make(made.shards(first)[0], **options), 2)
    make(made.shards(second)[0], **options).load_state_dict(state)
    (second / "2.tar").rename(second / "2.other")
    with pytest.raises(ValueError, match="its samples was 40 and is 26"):
        make(made.shards(second)[0], **options).load_state_dict(state)


def test_shards_that_were_rewritten_are_indexed_again_before_a_ledger_is_compared(tmp_path):
    made.write_shards(tmp_path)
    loader = plain(made.shards(tmp_path)[0], collate_fn=list, on_error="skip")
    state = after(loader, 2)
    (tmp_path / "2.tar").rename(tmp_path / "2.kept")
    (tmp_path / "1.tar").rename(tmp_path / "2.tar")
    (tmp_path / "2.kept").rename(tmp_path / "1.tar")
    with pytest.raises(ValueError, match="its data was"):
        loader.load_state_dict(state)


def test_a_samplers_costs_are_its_data():
    balance = Balance(budgets={"tokens": 9})
    state = BalancedBatchSampler({"tokens": [3] * 20}, balance).state_dict()
    for costs in ({"tokens": [3] * 19 + [4]}, {"tokens": [3] * 21}):
        with pytest.raises(ValueError, match="of other data"):
            BalancedBatchSampler(costs, balance).load_state_dict(state)


# --- data that have grown


@pytest.mark.parametrize(("make", "given"), [(balanced, {}), (plain, {})])
def test_grown_data_are_continued_between_epochs(make, given):
    loader = make(Named(), **given)
    list(loader)
    larger = make(Named(60), growing_data=True, **given)
    larger.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert sorted(itertools.chain(*larger)) == sorted(f"k{index}" for index in range(60))


def test_grown_data_are_continued_inside_an_epoch_in_their_order():
    loader, whole = balanced(shuffle=False), [f"k{index}" for index in range(60)]
    had = [
        name
        for step in itertools.islice(loader.steps(), 2)
        for b in step.microbatches
        for name in b
    ]
    larger = balanced(Named(60), shuffle=False, growing_data=True)
    larger.load_state_dict(loader.state_dict())
    assert sorted(had + list(itertools.chain(*larger))) == sorted(whole)
    loader = plain(Named())
    had = list(itertools.chain(*itertools.islice(loader, 3)))
    larger = plain(Named(60), growing_data=True)
    larger.load_state_dict(loader.state_dict())
    assert had + list(itertools.chain(*larger)) == whole


@pytest.mark.parametrize("options", [{}, {"batch_sampler": True}])
def test_grown_data_are_refused_after_the_last_batch_of_an_epoch(options):
    def new(count):
        if not options:
            return plain(Named(count), growing_data=True)
        batches = BatchSampler(SequentialSampler(range(count)), 4, drop_last=False)
        return DataLoader(Named(count), batch_sampler=batches, growing_data=True)

    iterator = iter(loader := new(22))
    list(itertools.islice(iterator, 5))
    new(60).load_state_dict(loader.state_dict())
    next(iterator)
    with pytest.raises(ValueError, match="its epoch has had its last batch"):
        new(60).load_state_dict(loader.state_dict())


@pytest.mark.parametrize("make", [balanced, plain])
def test_other_data_are_refused_with_the_option_too(make):
    shuffled = after(make(Named(), shuffle=True), 2)
    with pytest.raises(ValueError, match="order"):
        make(Named(60), shuffle=True, growing_data=True).load_state_dict(shuffled)
    longer = after(make(Named(60), shuffle=False), 2)
    with pytest.raises(ValueError, match="samples was 60 and is 48"):
        make(Named(), shuffle=False, growing_data=True).load_state_dict(longer)


def test_the_option_is_for_data_that_begin_as_they_were():
    state = balanced().state_dict()
    balanced(Named(60), growing_data=True).load_state_dict(state)
    with pytest.raises(ValueError, match="resume with the same data set"):
        balanced(Named(60, "j"), growing_data=True).load_state_dict(state)


def test_a_shard_more_is_data_that_have_grown_only_behind_the_others(tmp_path):
    made.write_shards(tmp_path)
    last, data = tmp_path / "2.tar", tmp_path / "kept"
    last.rename(data)
    state = plain(made.shards(tmp_path)[0], collate_fn=list).state_dict()
    data.rename(last)
    larger = plain(made.shards(tmp_path)[0], collate_fn=list, growing_data=True)
    larger.load_state_dict(state)
    last.rename(tmp_path / "-1.tar")
    other = plain(made.shards(tmp_path)[0], collate_fn=list, growing_data=True)
    with pytest.raises(ValueError, match="resume with the same data set"):
        other.load_state_dict(state)
