"""Resume after every step and every microbatch, in both modes, map-style and shards, with holes."""

import json

import pytest

from counterpoise import Ranks
from tests.flat_options import balanced_loader
from tests.loader import balanced_data as made
from tests.loader.resume import resume_data as data

STEP, EPOCHS = 8, 2
STEPS = data.COUNT // STEP
HOLES = len(data.BROKEN | data.UNREADABLE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the shards."""
    path = tmp_path_factory.mktemp("shards")
    data.write_shards(path)
    return path


@pytest.fixture(params=["map-style", "shards", "shards, global generators"])
def opened(request, folder):
    """A function that opens the data anew and returns it and the list of what it decodes."""

    def open_data():
        if request.param == "map-style":
            dataset = data.MapStyle()
            return dataset, dataset.decoded
        kind = data.Rolled if request.param == "shards" else data.GloballyRolled
        return data.shards(folder, kind)

    return open_data


def make(dataset, ranks=4, mode="exact", ledger=None, **changes):
    given = {
        "grouping": "isf", "budgets": {"tokens": 90}, "accumulate": "auto", "mode": mode,
        "samples_per_step": STEP, "ranks": Ranks(virtual=ranks), "shuffle": True, "seed": 5,
        "on_error": "skip", "layout": "torch", "collate_fn": made.as_list,
    }  # fmt: skip
    loader = balanced_loader(dataset, **(given | changes))
    if ledger is not None:
        loader.load_state_dict(json.loads(json.dumps(ledger)))
    return loader


def named(step):
    """A step's samples: where it is, their names with a hash of all their bytes, its holes."""
    samples = sorted((s["name"], made.digest(s)) for batch in step.microbatches for s in batch)
    return (
        step.infos[0].epoch,
        step.number,
        samples,
        sorted(hole for info in step.infos for hole in info.holes),
        {info.step_samples for info in step.infos},
    )


def steps(loader, most=10**9):
    """Return the next steps, over the epochs' edges, and the ledger after each."""
    found, ledgers = [], []
    while loader.state_dict()["epoch"] < EPOCHS and len(found) < most:
        for step in loader.steps():
            found.append(named(step))
            ledgers.append(loader.state_dict())
            if len(found) == most:
                break
    return found, ledgers


def microbatches(loader):
    """Return what is left of the epoch, microbatch by microbatch, and the ledger after each."""
    found, ledgers = [], []
    for batch in loader:
        found.append((loader.step_info, made.digest(batch)))
        ledgers.append(loader.state_dict())
    return found, ledgers


def whole_run(opened, **changes):
    """Return all steps of a run that nothing interrupts, and the ledgers before and after each."""
    loader = make(opened()[0], **changes)
    start = loader.state_dict()
    found, ledgers = steps(loader)
    names = [name for _, _, samples, holes, _ in found for name in [n for n, _ in samples] + holes]
    assert len(names) == EPOCHS * data.COUNT == EPOCHS * len(set(names))
    assert sum(len(holes) for *_, holes, _ in found) == EPOCHS * HOLES
    return found, [start, *ledgers]


def test_after_every_step_four_ranks_become_two_and_then_eight(opened):
    whole, ledgers = whole_run(opened)
    assert len(whole) == EPOCHS * STEPS
    for done, ledger in enumerate(ledgers):
        second = make(opened()[0], ranks=2, ledger=ledger)
        some, _ = steps(second, most=1 + done % 3)
        third = make(opened()[0], ranks=8, ledger=second.state_dict())
        assert some + steps(third)[0] == whole[done:]


def test_in_window_mode_other_ranks_go_on_at_the_edge_of_a_window_or_are_refused(opened):
    whole, ledgers = whole_run(opened, mode="window")
    refused = 0
    for done, ledger in enumerate(ledgers):
        if ledger["step"] != ledger["window_step"]:
            refused += 1
            with pytest.raises(ValueError, match="only the very same plan can continue"):
                make(opened()[0], ranks=2, mode="window", ledger=ledger)
            continue
        rest, _ = steps(make(opened()[0], ranks=2, mode="window", ledger=ledger))
        assert samples_of(rest) == samples_of(whole[done:])
    assert refused


def samples_of(found):
    return sorted((epoch, *each) for epoch, _, samples, *_ in found for each in samples)


@pytest.mark.parametrize("mode", ["exact", "window"])
def test_after_every_microbatch_twice_and_what_was_delivered_is_not_decoded_again(opened, mode):
    whole, ledgers = microbatches(make(opened()[0], mode=mode))
    for done in range(1, len(whole)):
        dataset, decoded = opened()
        second = make(dataset, mode=mode, ledger=ledgers[done - 1])
        batch = next(iter(second))
        had = {key for info, _ in whole[:done] for key in info.keys}
        assert not had & set(decoded)
        assert (second.step_info, made.digest(batch)) == whole[done]
        third = make(opened()[0], mode=mode, ledger=second.state_dict())
        assert microbatches(third) == (whole[done + 1 :], ledgers[done + 1 :])


@pytest.mark.parametrize("workers", [1, 2])
def test_shards_go_on_with_other_numbers_of_workers(folder, workers):
    whole, ledgers = whole_run(lambda: data.shards(folder))
    done = 2 + workers
    loader = make(data.shards(folder)[0], ranks=2, ledger=ledgers[done], num_workers=workers)
    found, after = steps(loader, most=3)
    loader.close()
    assert found == whole[done : done + 3]
    assert steps(make(data.shards(folder)[0], ranks=8, ledger=after[-1]))[0] == whole[done + 3 :]
