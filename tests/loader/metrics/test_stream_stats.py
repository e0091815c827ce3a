"""What a loop over a stream counts: against what it hands out, plain and in packs."""

import json
from typing import Any

import pytest
from torch.utils.data import datapipes

import counterpoise as cp
from counterpoise.loader.metrics.families import LOADER_FAMILIES
from tests.loader.streams import stream_data


def plain(stream, **changes):
    given: dict[str, Any] = {"batch_size": 8, "collate_fn": list, "keep_stats": True}
    return cp.DataLoader(stream, **(given | changes))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("on_error", ["raise", "skip", "refill"])
def test_a_plain_stream_counts_the_samples_of_each_batch(workers, on_error):
    stream = stream_data.Plain(101) if on_error == "raise" else stream_data.Broken(101)
    loader = plain(stream, num_workers=workers, on_error=on_error)
    batches = list(loader)
    found = loader.stats()
    assert (found["batches"], found["steps"]) == (len(batches), len(batches))
    assert found["samples"] == sum(map(len, batches)) == (101 if on_error == "raise" else 91)
    sizes = [each.nbytes for batch in batches for sample in batch for each in sample.values()]
    assert found["bytes"] == sum(sizes)
    assert found["holes"] == ({} if on_error == "raise" else {"is broken": 10})
    assert (found["work_seconds"] is None) == (not workers)
    assert found["queue_batches"] == (0 if workers else None)


def test_batches_of_which_nothing_is_left_do_not_count():
    loader = plain(stream_data.Broken(20), batch_size=1, on_error="skip")
    assert len(list(loader)) == loader.stats()["samples"] == 18


def test_a_stream_without_batches_counts_samples():
    loader = plain(stream_data.Plain(7), batch_size=None, collate_fn=None)
    assert len(list(loader)) == loader.stats()["samples"] == 7


def test_a_stream_of_known_length_is_counted_as_any():
    class Sized(stream_data.Plain):
        def __len__(self):
            return self.count

    loader = plain(Sized(20))
    assert sum(map(len, loader)) == loader.stats()["samples"] == 20


def test_an_iterdatapipe_s_batches_count_as_full():
    loader = plain(datapipes.iter.IterableWrapper(range(20)))
    assert sum(map(len, loader)) == 20
    assert loader.stats()["samples"] == 24


def test_a_plain_stream_that_is_resumed_counts_what_is_left():
    loader = plain(stream_data.Plain(40))
    batches = iter(loader)
    next(batches)
    again = plain(stream_data.Plain(40))
    again.load_state_dict(loader.state_dict())
    assert sum(map(len, again)) == again.stats()["samples"] == 32


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("by_step", [False, True])
def test_packs_of_a_stream_count_what_their_infos_say(workers, by_step, tmp_path):
    file = tmp_path / "run.json"
    stream = stream_data.Broken()
    own = stream_data.loader(stream, num_workers=workers, on_error="skip", keep_stats=file)
    infos = (
        [info for step in own.steps() for info in step.infos]
        if by_step
        else [info for _, info in own.with_info()]
    )
    found = own.stats()
    assert found["batches"] == len(infos)
    assert found["steps"] == len({info.step for info in infos})
    assert found["samples"] == sum(info.samples for info in infos) == stream_data.COUNT * 9 // 10
    assert found["costs"]["tokens"] == sum(info.costs["tokens"] for info in infos)
    assert found["holes"] == {"is broken": stream_data.COUNT // 10}
    assert found["bytes"] > 0
    assert found["imbalance"] == {}  # nobody knows the other ranks' packs
    assert (found["work_seconds"] or 0) > 0 if workers else found["work_seconds"] is None
    assert found["queue_batches"] == (0 if workers else None)
    kept = json.loads(file.read_text())
    assert kept == json.loads(json.dumps(found))
    own.close()


def test_prometheus_gets_a_stream_s_numbers():
    client = pytest.importorskip("prometheus_client")
    own = stream_data.loader(num_workers=1, keep_stats=True)
    registry = client.CollectorRegistry()
    registry.register(own.metrics())
    list(own)
    told = {each.name for each in registry.collect()}
    assert told == {each.name.removesuffix("_total") for each in LOADER_FAMILIES.values()}
    labels = {"rank": "0", "loader": "", "source": ""}
    value = registry.get_sample_value("counterpoise_loader_samples_total", labels)
    assert value == own.stats()["samples"] == stream_data.COUNT
    assert all(isinstance(each, int | float) for each in own.stats(flat=True).values())
    own.close()


def test_a_stream_that_begins_again_counts_on():
    own = stream_data.loader(stream_data.Plain(), keep_stats=True)
    for epoch in range(2):
        own.set_epoch(epoch)
        list(own)
    assert own.stats()["samples"] == 2 * stream_data.COUNT
    own.close()
