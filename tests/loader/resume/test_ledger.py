"""The ledger: what it says of samples that could not be used, and how large it may become."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from counterpoise import OnError, Ranks
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.job_spec import JobSpec
from counterpoise.balancer.protocol.parts import EpochPosition
from counterpoise.loader import Balance, BalancedBatchSampler, DataLoader, LoaderError
from counterpoise.loader.resume.balanced_position import (
    ResumePosition,
    read_position,
    write_position,
)
from counterpoise.loader.resume.ledger import parse_ledger, with_digest
from counterpoise.workers.sources.data_identity import KnownData
from tests.flat_options import balanced_loader
from tests.loader import balanced_data as made

PLAN = PlanConfig(8, 1024, "auto", ("tiles", "tokens"), (24, 8192), "isf", "greedy")
JOB = JobSpec(PLAN, on_error="skip")
COUNT = 60
UNREADABLE = {4, 17, 18, 33, 59}


EPOCH = 1_200_000
DATA = KnownData(range(EPOCH), EPOCH)


def size(place, holes):
    """The bytes of a ledger."""
    return len(json.dumps(write_position(JOB, 89, ResumePosition(place, 7, tuple(holes)), DATA)))


@given(
    start=st.integers(0, EPOCH),
    steps=st.integers(0, EPOCH),
    holes=st.sets(st.integers(0, EPOCH - 1), max_size=100),
    more=st.sets(st.integers(0, EPOCH - 1), max_size=100),
)
def test_a_ledger_is_small_anywhere_and_a_hole_takes_few_bytes(start, steps, holes, more):
    place = EpochPosition(start, start, min(start + steps, EPOCH), steps, "")
    few = size(place, holes)
    assert few <= 4096
    assert size(place, holes | more) - few <= 16 * len(more)


def test_a_ledger_at_the_end_of_a_large_epoch_with_a_hundred_holes_is_small():
    assert size(EpochPosition(EPOCH, EPOCH, EPOCH, 99, ""), range(EPOCH - 100, EPOCH)) <= 4096


def test_a_ledger_with_holes_survives_json():
    position = ResumePosition(EpochPosition(3072, 3, 3, 1, "0f"), 0, (5, 41), 9, 8)
    state = json.loads(json.dumps(write_position(JOB, 2, position, DATA)))
    ledger, found = read_position(state, JOB, 8, DATA)
    assert (ledger.epoch, found) == (2, position)


@pytest.mark.parametrize("holes", [None, 3, ["x"], [[1]]])
def test_holes_that_are_none_are_refused(holes):
    state = write_position(JOB, 0, ResumePosition(EpochPosition(0, 0, 0, 0, "")), DATA) | {
        "holes": holes
    }
    with pytest.raises(ValueError, match="not a ledger"):
        parse_ledger(state)


def make(ranks=2, mode="exact", dataset=None, **changes):
    given = {
        "grouping": "isf", "budgets": {"tokens": 60}, "accumulate": "auto", "mode": mode,
        "samples_per_step": 8, "ranks": Ranks(virtual=ranks), "shuffle": True, "on_error": "skip",
        "layout": "torch", "collate_fn": list,
    }  # fmt: skip
    data = dataset or made.Augmented(COUNT, unreadable=UNREADABLE)
    return balanced_loader(data, **(given | changes))


def walk(loader):
    """Return each step's keys and the ledger after it."""
    found = []
    for step in loader.steps():
        keys = Counter(key for info in step.infos for key in info.keys)
        found.append((keys, loader.state_dict()))
    return found


@pytest.mark.parametrize("mode", ["exact", "window"])
def test_the_holes_of_all_steps_begun_are_counted_in_the_ledger(mode):
    whole = walk(make(mode=mode))
    order = [index for keys, _ in whole for index in keys]
    assert len(order) == COUNT - len(UNREADABLE)
    counts = [ledger["left_out"] for _, ledger in whole[:-1]]
    assert counts == sorted(counts)
    assert 2 < counts[-1] <= len(UNREADABLE)
    assert counts == [ledger["unusable"] for _, ledger in whole[:-1]]


@pytest.mark.parametrize("mode", ["exact", "window", "epoch"])
def test_a_ledger_names_the_holes_of_the_step_that_was_begun_only(mode):
    loader = make(mode=mode)
    lost = {}
    for _ in loader:
        info, ledger = loader.step_info, loader.state_dict()
        lost[info.step] = lost.get(info.step, 0) + len(info.holes)
        if ledger["microbatch"] or ledger["served"]:
            assert len(ledger["holes"]) == ledger["left_out"] - sum(lost.values()) + lost[info.step]
        else:
            assert ledger["holes"] == []
    assert sum(lost.values()) == len(UNREADABLE)


def test_what_was_asked_to_be_left_out_is_no_error_after_a_resume_either():
    skipped = {
        "skip_keys": [f"k{index:04}" for index in range(20, 30)],
        "on_error": OnError("skip", max_errors=len(UNREADABLE)),
    }
    whole = walk(make(**skipped))
    for _, ledger in whole:
        loader = make(**skipped)
        loader.load_state_dict(ledger)
        walk(loader)
    assert max(ledger["left_out"] - ledger["unusable"] for _, ledger in whole) > 5


def test_the_ledger_is_the_same_for_every_rank():
    one = [ledger for _, ledger in walk(make(ranks=1))]
    many = [ledger for _, ledger in walk(make(ranks=4))]
    names = ("left_out", "start", "step", "epoch")
    assert [[each[n] for n in names] for each in one] == [[each[n] for n in names] for each in many]


def test_too_many_errors_end_the_epoch_at_the_same_step_everywhere():
    whole = walk(make(on_error=OnError("skip", max_errors=len(UNREADABLE))))
    last = next(n for n, (_, ledger) in enumerate(whole) if ledger["unusable"] > 2)
    for ranks in (1, 2, 4):
        loader, steps = make(ranks=ranks, on_error=OnError("skip", max_errors=2)), []
        with pytest.raises(LoaderError, match="max_errors=2 allows 2"):
            steps.extend(step.number for step in loader.steps())
        assert steps == list(range(last))


def test_errors_before_a_resume_count_too():
    whole = walk(make())
    after = next(ledger for _, ledger in whole if ledger["unusable"] >= 2)
    loader = make(on_error=OnError("skip", max_errors=2))
    loader.load_state_dict(with_digest(after | {"left_out": 2, "unusable": 2}))
    with pytest.raises(LoaderError, match="max_errors"):
        list(loader.steps())


def test_a_part_of_the_samples_may_be_lost():
    assert walk(make(on_error=OnError("skip", max_errors=0.2)))
    with pytest.raises(LoaderError, match=r"max_errors=0\.05 allows 3"):
        walk(make(on_error=OnError("skip", max_errors=0.05)))


@pytest.mark.parametrize("wrong", [-1, 1.5, float("nan")])
def test_a_budget_of_errors_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match="max_errors"):
        make(on_error=OnError("skip", max_errors=wrong))


def test_a_budget_of_errors_needs_skip():
    with pytest.raises(ValueError, match="on_error='skip'"):
        OnError(max_errors=3)


def test_an_order_of_another_seed_is_refused():
    state = write_position(JOB, 0, ResumePosition(EpochPosition(0, 0, 0, 0, "")), DATA)
    other = replace(JOB, plan=replace(PLAN, seed=1))
    with pytest.raises(ValueError, match="another order"):
        read_position(state, other, 8, DATA)


# --- one format for all three


def ledgers():
    """Return a ledger of each kind and a loader that can continue there, by kind."""
    balanced, plain = make(), DataLoader(range(23), batch_size=4)
    sampler = BalancedBatchSampler(
        {"tokens": [3] * 20}, Balance(budgets={"tokens": 9}), ranks=(0, 2)
    )
    return {
        each.state_dict()["kind"]: (each.state_dict(), each) for each in (balanced, plain, sampler)
    }


KINDS = ("balanced", "plain", "sampler")


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_the_same_head_is_small_and_is_read_by_its_own_alone(kind):
    every = ledgers()
    state, _ = every[kind]
    assert list(state)[:3] == ["version", "kind", "seed"]
    assert len(json.dumps(state)) < 800
    for other, (_, loader) in every.items():
        if other == kind:
            loader.load_state_dict(json.loads(json.dumps(state)))
        else:
            with pytest.raises(ValueError, match=f"kind is '{kind}', needed is '{other}'"):
                loader.load_state_dict(state)


OLD: dict[str, dict[str, Any]] = {
    "balanced": {"epoch": 0, "start": 0, "window_step": 0, "step": 0, "planner": 1},
    "plain": {"batches": 3, "batch_size": 4, "seed": None},
    "sampler": {"epoch": 0, "start": 0, "step": 0, "before": 0, "given": 0, "samples": 20},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_ledger_of_the_older_format_is_refused_with_the_reason(kind):
    with pytest.raises(ValueError, match=r"by an older counterpoise.*start the epoch again"):
        ledgers()[kind][1].load_state_dict(OLD[kind] | {"version": 1})


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_field_is_named(kind):
    state, loader = ledgers()[kind]
    for name in set(state) - {"version", "kind", "check"}:
        with pytest.raises(ValueError, match=rf"not a ledger of counterpoise: ledger\.{name}"):
            loader.load_state_dict(state | {name: {}})
        with pytest.raises(ValueError, match=f"missing required field {name}"):
            loader.load_state_dict({key: value for key, value in state.items() if key != name})
    with pytest.raises(ValueError, match="field 'colour' that is unknown"):
        loader.load_state_dict(state | {"colour": 1})


@pytest.mark.parametrize("kind", ["balanced", "sampler"])
def test_a_ledger_of_another_planner_is_refused(kind):
    state, loader = ledgers()[kind]
    with pytest.raises(ValueError, match="resume with the counterpoise that wrote it"):
        loader.load_state_dict(with_digest(state | {"planner": 99}))
