"""Resume at any position, into other numbers of ranks and workers."""

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from counterpoise import OnError, Ranks
from counterpoise.loader import DataLoader
from counterpoise.loader.resume.ledger import with_digest
from tests.flat_options import balanced_loader
from tests.loader import balanced_data as made
from tests.loader.resume.resume_data import through_json

COUNT, STEP, EPOCHS = 50, 12, 2
STEPS = -(-COUNT // STEP)
PLANS: dict[str, dict[str, Any]] = {
    "isf": {"grouping": "isf", "budgets": {"tokens": 90}, "accumulate": "auto"},
    "fixed": {"grouping": "fixed", "batch_size": 3},
}


def make(plan="isf", ranks=2, dataset=None, **changes):
    given: dict[str, Any] = {
        "shuffle": True,
        "seed": 5,
        "samples_per_step": STEP,
        "ranks": Ranks(virtual=ranks),
    }
    given |= {"layout": "torch", "collate_fn": made.as_list, **PLANS[plan]}
    if plan == "fixed":
        given["accumulate"] = STEP // (3 * ranks)
    return balanced_loader(dataset or made.Augmented(COUNT), **{**given, **changes})


def global_batches(loader):
    """Return (epoch, step, all samples by name) of what is left of the two epochs, and ledgers."""
    batches, ledgers = [], []
    while loader.state_dict()["epoch"] < EPOCHS:
        for step in loader.steps():
            samples = sorted(
                (sample["name"], made.digest(sample)) for batch in step.microbatches
                for sample in batch
            )  # fmt: skip
            batches.append((step.infos[0].epoch, step.number, samples))
            ledgers.append(through_json(loader.state_dict()))
    loader.close()
    return batches, ledgers


def microbatches(loader):
    """Return what is left of the epoch, microbatch by microbatch, and a ledger after each."""
    found, ledgers = [], []
    for batch in loader:
        found.append((loader.step_info, made.digest(batch)))
        ledgers.append(through_json(loader.state_dict()))
    loader.close()
    return found, ledgers


# --- exact mode, a fixed global batch


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_global_batches_are_the_same_after_every_step_with_any_number_of_ranks(plan, ranks):
    whole, ledgers = global_batches(make(plan))
    assert len(whole) == EPOCHS * STEPS
    for done, ledger in enumerate(ledgers, start=1):
        loader = make(plan, ranks)
        loader.load_state_dict(ledger)
        assert loader.state_dict() == with_digest({**ledger, **_own(loader)})
        assert global_batches(loader)[0] == whole[done:]


def test_ledgers_do_not_grow_with_ranks_and_steps():
    first, last = (global_batches(make(ranks=ranks))[1][-1] for ranks in (1, 4))
    assert first == with_digest({**last, **_own(make(ranks=1))})


def _own(loader):
    """What in a ledger may differ between loaders that stand at the same place."""
    state = loader.state_dict()
    return {name: state[name] for name in ("ranks", "digest")}


# --- inside a step


@settings(max_examples=25)
@given(
    mode=st.sampled_from(["exact", "window", "epoch"]), ranks=st.integers(1, 3),
    size=st.integers(2, 20), tokens=st.integers(30, 200),
    unreadable=st.sets(st.integers(0, COUNT - 1), max_size=4),
    buffer_bytes=st.sampled_from([20_000, 1 << 30]), drop_last=st.booleans(),
    oversize=st.sampled_from(["alone", "refuse"]), done=st.integers(1, 400),
)  # fmt: skip
def test_any_plan_goes_on_anywhere(
    mode, ranks, size, tokens, unreadable, buffer_bytes, drop_last, oversize, done
):
    def new():
        return make(
            dataset=made.Augmented(COUNT, unreadable=unreadable), on_error="skip", mode=mode,
            ranks=ranks, samples_per_step=size, budgets={"tokens": tokens},
            buffer_bytes=buffer_bytes, drop_last=drop_last, oversize=oversize,
        )  # fmt: skip

    whole, ledgers = microbatches(new())
    done = min(done, len(whole))
    if done:
        loader = new()
        loader.load_state_dict(ledgers[done - 1])
        assert microbatches(loader) == (whole[done:], ledgers[done:])


def test_steps_resumed_inside_a_step_give_what_is_left_of_it():
    whole, ledgers = microbatches(make("fixed"))
    loader = make("fixed")
    loader.load_state_dict(ledgers[0])
    first = next(loader.steps())
    assert first.infos == tuple(info for info, _ in whole[1:4])


def test_holes_are_reported_once(tmp_path):
    def new():
        dataset = made.Augmented(COUNT, unreadable=range(0, COUNT, 5))
        return make(dataset=dataset, on_error=OnError("skip", dead_letter=str(tmp_path / "dead")))

    loader = new()
    while True:
        ledger = loader.state_dict()
        loader = new()
        loader.load_state_dict(ledger)
        if next(iter(loader), None) is None:
            break
    assert len((tmp_path / "dead").read_text().splitlines()) == COUNT // 5


# --- loaded in many ways


def test_what_is_loaded_counts_whether_iter_came_before_or_after():
    whole, ledgers = microbatches(make())
    loader = make()
    iterator = iter(loader)
    loader.load_state_dict(ledgers[4])
    with pytest.raises(RuntimeError, match="this iterator is over"):
        next(iterator)
    loader.load_state_dict(ledgers[4])
    iterator = iter(loader)
    assert loader.state_dict() == ledgers[4]
    assert made.digest(next(iterator)) == whole[5][1]


def test_a_framework_may_count_epochs_from_where_it_resumed():
    loader, whole = make(), []
    for epoch in range(3):
        for number, batch in enumerate(loader):
            whole.append((epoch, made.digest(batch)))
            if (epoch, number) == (1, 2):
                at, ledger = len(whole), through_json(loader.state_dict())
    loader.close()
    for counted in (0, 1):  # Fabric begins at 0, Lightning goes on
        loader, rest = make(), []
        loader.load_state_dict(ledger)
        for epoch in range(2):
            loader.sampler.set_epoch(counted + epoch)
            rest += [(epoch + 1, made.digest(batch)) for batch in loader]
        loader.close()
        assert rest == whole[at:]


def test_steps_end_when_a_ledger_is_loaded():
    whole, ledgers = global_batches(make())
    loader = make()
    steps = loader.steps()
    next(steps)
    loader.load_state_dict(ledgers[2])
    with pytest.raises(RuntimeError, match="this iterator is over"):
        next(steps)
    assert global_batches(loader)[0] == whole[3:]


def test_before_the_first_and_after_the_last_batch():
    whole, ledgers = microbatches(make())
    loader = make()
    start = loader.state_dict()
    assert (start["epoch"], start["step"]) == (0, 0)
    iterator = iter(loader)
    assert loader.state_dict() == start
    for _ in whole:
        next(iterator)
    at_edge = loader.state_dict()
    assert at_edge == ledgers[-1]
    assert (at_edge["epoch"], at_edge["step"]) == (0, STEPS)
    assert next(iterator, None) is None
    after = loader.state_dict()
    assert (after["epoch"], after["step"]) == (1, 0)
    second, _ = microbatches(loader)
    for ledger, epochs in ((start, [whole, second]), (at_edge, [[], second]), (after, [second])):
        resumed = make()
        resumed.load_state_dict(ledger)
        for epoch in epochs:
            assert microbatches(resumed)[0] == epoch


def test_choosing_the_loaded_epoch_keeps_the_position_and_another_drops_it():
    whole, ledgers = microbatches(make())
    loader = make()
    loader.load_state_dict(ledgers[4])
    loader.set_epoch(0)
    assert microbatches(loader)[0] == whole[5:]
    loader.load_state_dict(ledgers[4])
    loader.set_epoch(7)
    assert loader.state_dict()["step"] == 0


def test_with_drop_last_and_without_shuffling():
    for changes in ({"drop_last": True}, {"shuffle": False}):
        whole, ledgers = global_batches(make(**changes))
        loader = make(**changes)
        loader.load_state_dict(ledgers[2])
        assert global_batches(loader)[0] == whole[3:]


# --- ledgers that do not fit


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"seed": 6}, "seed was 5 and is 6"),
        ({"shuffle": False}, "shuffle was True and is False"),
        ({"mode": "window"}, "mode was 'exact' and is 'window'"),
        (
            {"samples_per_step": 16},
            "samples_per_step was 12 and is 16.*batch size x accumulated batches x ranks",
        ),
    ],
)
def test_a_ledger_of_another_order_is_refused(changes, reason):
    ledger = make().state_dict()
    with pytest.raises(ValueError, match=reason) as refused:
        make(**changes).load_state_dict(ledger)
    assert "\n" not in str(refused.value)


def test_a_ledger_inside_a_step_needs_the_same_plan():
    _, ledgers = microbatches(make("fixed"))
    for ledger in ledgers[:3]:
        with pytest.raises(ValueError, match="only the very same plan can continue"):
            make("fixed", ranks=4).load_state_dict(ledger)


@pytest.mark.parametrize(
    "state", [None, [], {}, {"version": 99}, {"batches": 3}, {**make().state_dict(), "version": 9}]
)
def test_what_is_no_ledger_is_refused(state):
    with pytest.raises(ValueError, match="ledger"):
        make().load_state_dict(state)
    with pytest.raises(ValueError, match="ledger"):
        DataLoader(range(5)).load_state_dict(state)
