"""A balanced DataLoader over streams: batches, weights, errors, and where it goes on."""

import copy
import json

import datasets
import pytest
import torch
import webdataset as wds
from torch.utils.data import IterDataPipe, default_collate

from counterpoise import OnError, Ranks
from counterpoise.loader import LoaderError, StepLoader
from tests.loader.streams import stream_data as made
from tests.loader.streams.stream_data import BUDGET, loader, numbers, take

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.mark.parametrize("workers", [0, 2])
def test_each_sample_comes_once_in_packs_within_the_budget_and_whole_steps(workers):
    own, seen = loader(made.Plain(), num_workers=workers), []
    for step in own.steps():
        assert len(step.microbatches) == 2
        assert sum(info.label_tokens for info in step.infos) == step.infos[0].step_label_tokens
        for batch, info in zip(step.microbatches, step.infos, strict=True):
            if info.samples:
                seen += numbers(batch)
                labels = batch["labels"]
                assert int((labels != -100).sum()) == info.label_tokens
                assert info.costs["tokens"] == labels.numel() <= BUDGET
                assert len(info.keys) == info.samples
            else:
                assert (batch["labels"] == -100).all()
    assert sorted(seen) == [*range(made.COUNT)]


def test_a_padded_batch_is_within_the_budget_with_its_padding():
    own = loader(layout="padded", accumulate=1)
    areas = [batch["input_ids"].numel() for batch in own]
    assert max(areas) <= BUDGET
    assert sum(areas) / len(areas) > 0.8 * BUDGET


def test_samples_and_packs_are_padded_to_shapes():
    own = loader(
        made.Plain(), align={"tokens": 16}, buckets={"tokens": [128, 256]}, budgets={},
        oversize="refuse", accumulate=1,
    )  # fmt: skip
    lengths = set()
    for batch in own:
        info = own.step_info
        lengths.add(batch["input_ids"].numel())
        assert info.costs["tokens"] == batch["input_ids"].numel()
        real = sum(made.LENGTHS[int(key.partition(":")[2])] for key in info.keys)
        assert info.costs["tokens"] - info.padding["tokens"] == real
        assert info.label_tokens == int((batch["labels"] != -100).sum()) == real - info.samples
        assert all(each % 16 == 0 for each in batch["cu_seq_lens_padded"].tolist())
    assert lengths <= {128, 256}


def test_a_collate_fn_makes_the_batches_and_its_labels_count():
    own = loader(layout="torch", collate_fn=made.joined, accumulate=3)
    for batch in own:
        info = own.step_info
        assert info.samples == 0 or info.costs["tokens"] == len(batch["input_ids"])
    last = own.step_info
    assert (last.samples, last.label_tokens, last.images) == (0, 0, False)
    assert last.costs["tokens"] == last.padding["tokens"] == 0
    assert len(batch["input_ids"])  # of a real sample, which weighs nothing


def test_cost_gives_what_has_a_budget_and_may_count_label_tokens():
    own = loader(
        made.Plain(), layout="torch", collate_fn=list, budgets={"rows": 3}, label_tokens="rows",
        cost=lambda sample: {"rows": 1 + len(sample["input_ids"]) % 2},
    )  # fmt: skip
    for batch in own:
        rows = sum(1 + len(each["input_ids"]) % 2 for each in batch)
        assert own.step_info.label_tokens == rows <= 3


def test_one_pack_is_made_for_one_that_is_asked_for():
    """Counted: a pack is collated in each next(), and for it no more is read than two hold."""
    read, packs = [], []

    class Told(made.Plain):
        def __iter__(self):
            for each in super().__iter__():
                read.append(len(each["input_ids"]))
                yield each

    def collate(samples):
        packs.append(len(samples))
        return samples

    own = loader(Told(), layout="torch", collate_fn=collate, accumulate=1)
    packs.clear()  # of the look whether it takes no samples
    batches = iter(own)
    count = 0
    for _ in batches:
        count += 1
        assert len(packs) == 1
        assert sum(read) < 2 * BUDGET + max(made.LENGTHS)
        read.clear()
        packs.clear()
    assert count > 10


def test_what_collate_raises_is_raised_and_the_pack_comes_again():
    fails = [False, True]

    def collate(samples):
        if samples and len(samples) > 4 and fails and fails.pop():
            raise RuntimeError("once")
        return default_collate([len(samples)])

    def run():
        own, found = loader(layout="torch", collate_fn=collate), []
        batches = iter(own)
        while True:
            try:
                batch = next(batches)
            except RuntimeError:
                found_before.append(len(found))
                continue
            except StopIteration:
                return found
            found.append((batch.tolist(), own.step_info.keys))

    found_before = []
    fails.clear()
    whole = run()
    fails[:] = [False, True]
    assert run() == whole
    assert found_before


def test_samples_that_cannot_be_used_are_left_out_counted_and_written(tmp_path):
    letters = tmp_path / "letters.jsonl"
    own = loader(made.Broken(), on_error=OnError("skip", dead_letter=str(letters)))
    came = take(own)
    assert sum(len(keys) for _, _, keys, _, _ in came) == made.COUNT - 12
    assert own.left_out == 12
    assert len(letters.read_text().splitlines()) == 12
    with pytest.raises(LoaderError, match="max_errors=3 allows 3"):
        take(loader(made.Broken(), on_error=OnError("skip", max_errors=3)))
    with pytest.raises(Exception, match="is broken"):
        take(loader(made.Broken()))


@pytest.mark.parametrize(("oversize", "reason"), [("alone", ""), ("refuse", ""), ("error", "over")])
def test_a_sample_over_budget_is_alone_left_out_or_an_error(oversize, reason):
    own = loader(made.Plain(), oversize=oversize, budgets={"tokens": 50}, accumulate=1)
    over = sum(length > 50 for length in made.LENGTHS)
    if reason:
        with pytest.raises(ValueError, match=r"is over budget .* and oversize is 'error'"):
            take(own)
        return
    infos = [own.step_info for _ in own]
    alone = [info for info in infos if info.over_budget]
    assert len(alone) == over * (oversize == "alone")
    assert all(info.samples == 1 for info in alone)
    assert own.left_out == over * (oversize == "refuse")


def test_a_worker_that_dies_is_torchs_error():
    own = loader(made.Deadly(), num_workers=2)
    with pytest.raises(RuntimeError, match=r"worker .*pid"):
        take(own)


def test_workers_stay_show_the_users_data_set_and_have_another_epoch():
    own = loader(
        made.Shows(), num_workers=2, persistent_workers=True, worker_init_fn=made.mark,
        layout="torch", collate_fn=list,
    )  # fmt: skip
    for _ in range(2):
        shown = [each["is_own"] for batch in own for each in batch]
        assert shown == [1] * made.COUNT
    assert own.step_info.epoch == 1
    own.close()


def test_a_copy_begins_where_the_loader_is():
    own = loader()
    whole = take(loader())
    take(own, 5)
    assert take(copy.deepcopy(own)) == whole[5:]


def test_lengths_and_steps_are_not_known():
    own = loader()
    for ask in (lambda: len(own), lambda: own.num_steps, lambda: len(StepLoader(own))):
        with pytest.raises(TypeError, match="of a stream the number of samples, and so of steps"):
            ask()
    assert len([*StepLoader(own)]) == len(take(own)) / 2


def test_set_epoch_is_the_streams_too():
    dataset = made.Stateful()
    own = loader(dataset)
    own.set_epoch(4)
    assert dataset.epoch == 4
    take(own, 1)
    assert own.step_info.epoch == 4


def test_an_epoch_that_is_chosen_after_a_ledger_begins_at_its_start():
    own = loader(made.Plain())
    whole = take(own)
    own = loader(made.Plain())
    take(own, 5)
    again = loader(made.Plain())
    again.load_state_dict(own.state_dict())
    again.set_epoch(3)
    assert take(again) == whole


def test_workers_that_read_the_same_are_named(caplog):
    class Same(made.Plain):
        def share(self):
            return range(self.count)

    take(loader(Same(), num_workers=2), 3)
    assert "the streams of workers of a rank begin with the same sample" in caplog.text
    assert "split_dataset_by_node" in caplog.text


# --- other people's streams


def rows(count=made.COUNT):
    table = {"input_ids": [[n] * made.LENGTHS[n] for n in range(count)]}
    return datasets.Dataset.from_dict(table).to_iterable_dataset(num_shards=4)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_hugging_face_stream_is_packed_and_resumed(workers):
    def made_anew():
        stream = rows().map(lambda row: {**row, "labels": row["input_ids"]})
        return loader(stream, num_workers=workers)

    whole = take(made_anew())
    firsts = [number for *_, batch in whole for number in {*batch["input_ids"][0]}]
    assert {*firsts} == {*range(made.COUNT)}
    own = made_anew()
    take(own, 7)
    again = made_anew()
    again.load_state_dict(json.loads(json.dumps(own.state_dict())))
    assert take(again) == whole[7:]


def test_a_shuffle_buffer_of_hugging_face_loses_nothing():
    def made_anew():
        return loader(rows().shuffle(seed=1, buffer_size=8))

    whole = take(made_anew())
    own = made_anew()
    take(own, 6)
    again = made_anew()
    again.load_state_dict(own.state_dict())
    assert take(again) == whole[6:]


def test_a_webdataset_pipeline_is_packed(tmp_path):
    for shard in range(2):
        with wds.TarWriter(str(tmp_path / f"{shard}.tar")) as tar:
            for number in range(shard * 20, shard * 20 + 20):
                ids = made.LENGTHS[number] * [number]
                tar.write({"__key__": f"s{number:03}", "ids.json": ids})

    def tokens(row):
        return {"__key__": row["__key__"], "input_ids": torch.tensor(row["ids.json"])}

    urls = str(tmp_path / "{0..1}.tar")
    own = loader(
        wds.WebDataset(urls, shardshuffle=False).decode().map(tokens), layout="torch",
        collate_fn=list, num_workers=2,
    )  # fmt: skip
    keys = [key for *_, batch in [(own.step_info, b) for b in own] for key in
            [each["__key__"] for each in batch]]  # fmt: skip
    assert sorted(keys) == [f"s{number:03}" for number in range(40)]


# --- what is refused


class Pipe(IterDataPipe):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"budgets": {}}, "balance has none: give balance=cp.Balance"),
        ({"grouping": "auto", "budgets": {}, "layout": "torch"}, "a stream is packed within"),
        ({"accumulate": "auto"}, "accumulate is 'auto'.*Balance.accumulate=4"),
        ({"mode": "window"}, "mode is 'window', and a stream is packed as it comes"),
        ({"samples_per_step": 8}, "samples_per_step is 8, .*leave samples_per_step"),
        ({"partition": "greedy"}, "partition is 'greedy'"),
        ({"batch_size": 4}, "batch_size is 4, and budgets decide"),
        ({"shuffle": True}, "let the stream shuffle"),
        ({"key": str}, "key is <class 'str'>"),
        ({"balancer": "tcp://127.0.0.1:1"}, "balancer is 'tcp"),
        ({"growing_data": True}, "growing_data is True"),
        ({"decode_threads": 2}, "decode_threads is 2"),
        (
            {"on_error": OnError(worker_restarts=1), "num_workers": 1},
            "worker_restarts=1, and a worker of a Stateful cannot go on",
        ),
        ({"cost": {"tokens": [1]}}, "cost is a dict, and samples of a stream have no index"),
        ({"on_error": "refill"}, "refill"),
        ({"on_error": OnError("skip", max_errors=0.1)}, "max_errors=0.1 is a part"),
    ],
)
def test_what_a_stream_cannot_have_is_refused_by_name(changes, reason):
    with pytest.raises(ValueError, match=reason):
        loader(**changes)


def test_several_ranks_of_one_process_are_refused():
    with pytest.raises(ValueError, match="each rank has a stream of its own: leave Ranks"):
        iter(loader(ranks=Ranks(virtual=2)))


def test_several_ranks_need_a_process_group():
    with pytest.raises(ValueError, match="call init_process_group"):
        next(iter(loader(ranks=(0, 2))))


def test_a_datapipe_is_refused():
    with pytest.raises(ValueError, match="a Pipe is neither: give an IterableDataset"):
        loader(Pipe())


def test_a_sample_without_tokens_needs_a_cost():
    class Texts(made.Plain):
        def __iter__(self):
            yield {"text": "a"}

    with pytest.raises(ValueError, match="without input_ids; give DataLoader"):
        take(loader(Texts()))
    with pytest.raises(ValueError, match="has no cost named tokens; its costs are rows"):
        take(loader(made.Plain(), cost=lambda _: {"rows": 1}))
