"""Ledgers of streams: where a loader over one goes on, and whose it refuses."""

import json
import pickle

import pytest

import counterpoise as cp
from tests.loader.streams import stream_data as made
from tests.loader.streams.stream_data import digest, loader, take

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.mark.parametrize(
    ("workers", "stop"), [(0, 1), (0, 6), (0, 13), (0, None), (2, 1), (2, 7), (1, None)]
)
@pytest.mark.parametrize("kind", [made.Stateful, made.Plain])
def test_a_ledger_goes_on_exactly(kind, workers, stop):
    whole = take(loader(kind(), num_workers=workers))
    stop = len(whole) if stop is None else stop
    first = loader(kind(), num_workers=workers)
    assert take(first, stop) == whole[:stop]
    ledger = pickle.loads(pickle.dumps(first.state_dict()))
    again = loader(kind(), num_workers=workers)
    again.load_state_dict(ledger)
    assert take(again) == whole[stop:]
    assert again.state_dict()["epoch"] == 1


def test_a_ledger_of_what_was_trained_on_is_that_of_its_info():
    own = loader()
    pairs = [*own.with_info()]
    _, info = pairs[4]
    again = loader()
    again.load_state_dict(own.state_dict(after=info))
    assert take(again) == [digest(*pair) for pair in pairs[5:]]


def test_the_next_epoch_is_whole_after_a_resumed_one():
    own = loader(made.Plain())
    take(own, 5)
    again = loader(made.Plain())
    again.load_state_dict(own.state_dict())
    take(again)
    assert len(take(again)) == len(take(loader(made.Plain())))


def test_a_stream_without_a_state_is_read_again_and_that_is_said(caplog):
    own = loader(made.Plain())
    take(own, 5)
    loader(made.Plain()).load_state_dict(own.state_dict())
    assert "Plain has no state_dict()" in caplog.text
    caplog.clear()
    own = loader()
    take(own, 5)
    loader().load_state_dict(own.state_dict())
    assert not caplog.text


def test_a_ledger_has_no_samples_and_is_small():
    own = loader(made.Plain())
    take(own, 8)
    assert len(json.dumps(own.state_dict())) < 1200


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_workers": 2}, "workers was 0 and is 2.*save state_dict.. on every rank"),
        ({"ranks": (0, 2)}, "ranks was 1 and is 2"),
        ({"budgets": {"tokens": 300}}, "digest was .* resume with the same ranks, budgets"),
    ],
)
def test_a_ledger_of_other_readers_or_packs_is_refused(changes, reason):
    own = loader(made.Plain())
    take(own, 5)
    with pytest.raises(ValueError, match=reason):
        loader(made.Plain(), **changes).load_state_dict(own.state_dict())


def test_a_ledger_of_a_planned_loop_is_refused():
    rows = [made.sample(number) for number in range(10)]
    planned = cp.DataLoader(rows, batch_size=2, shuffle=True, balance="fixed")
    with pytest.raises(ValueError, match="kind is 'balanced', needed is 'stream'"):
        loader().load_state_dict(planned.state_dict())
