"""After an epoch that was resumed, a stream's next one is whole, however it keeps its state."""

import datasets
import pytest
from torch.utils.data import IterableDataset

from counterpoise.loader import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
COUNT = 12
SETTINGS = [
    pytest.param({}, id="inline"),
    pytest.param({"num_workers": 1}, id="worker"),
    pytest.param({"num_workers": 1, "persistent_workers": True}, id="persistent"),
]


def hugging_face(count=COUNT):
    return datasets.Dataset.from_dict({"a": list(range(count))}).to_iterable_dataset(num_shards=2)


def shuffled():
    return hugging_face().shuffle(seed=1, buffer_size=4)


def mapped():
    return hugging_face().map(lambda row: {"a": row["a"]})


class Kept(IterableDataset):
    """Begins at the state that was loaded, whenever it is iterated."""

    def __init__(self):
        self.start = 0

    def __iter__(self):
        for at in range(self.start, COUNT):
            self.at = at
            yield {"a": at}

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.start = state["at"] + 1


class KeptWithState(Kept):
    """The same, with a state before it is iterated."""

    at = -1


class Wrapped(IterableDataset):
    """Hugging Face's inside, as torchtitan has it."""

    def __init__(self):
        self.inner = hugging_face()

    def __iter__(self):
        yield from self.inner

    def state_dict(self):
        return {"inner": self.inner.state_dict()}

    def load_state_dict(self, state):
        self.inner.load_state_dict(state["inner"])


class Taken(IterableDataset):
    """Takes a state over once, when it is iterated; counts its epochs."""

    state, at, epoch = None, 0, -1

    def __iter__(self):
        taken, self.state = self.state, None
        self.at, self.epoch = taken or (0, self.epoch + 1)
        while self.at < COUNT:
            self.at += 1
            yield {"a": self.at - 1 + 100 * self.epoch}

    def state_dict(self):
        return {"where": (self.at, self.epoch)}

    def load_state_dict(self, state):
        self.state = state["where"]


class Moved(Taken):
    """Is at the state that was loaded at once."""

    epoch = 0

    def __iter__(self):
        while self.at < COUNT:
            self.at += 1
            yield {"a": self.at - 1 + 100 * self.epoch}
        self.at, self.epoch = 0, self.epoch + 1

    def load_state_dict(self, state):
        self.at, self.epoch = state["where"]


def names(samples):
    return [sample["a"] for sample in samples]


def new(make, setting):
    return DataLoader(make(), 2, collate_fn=names, **setting)


def epochs(loader, count):
    found = [[name for batch in loader for name in batch] for _ in range(count)]
    loader.close()
    return found


MAKES = [hugging_face, shuffled, mapped, Wrapped, KeptWithState, Taken, Moved]
# Each kind of data set without workers, and one that has a state of its own by each kind of worker.
FEWER = [
    pytest.param(
        make,
        setting.values[0],
        id=f"{make.__name__}-{setting.id}",
        marks=() if setting is SETTINGS[0] or make in (shuffled, Taken) else pytest.mark.long,
    )
    for make in MAKES
    for setting in SETTINGS
]


@pytest.mark.parametrize(("make", "setting"), FEWER)
@pytest.mark.parametrize("at", [4, 6, "end"])
def test_epochs_after_a_resume_are_those_of_an_uninterrupted_run(make, setting, at):
    whole = epochs(new(make, setting), 3)
    loader = new(make, setting)
    iterator = iter(loader)
    for _ in range(6 if at == "end" else at):
        next(iterator)
    if at == "end":
        assert list(iterator) == []
    resumed = new(make, setting)
    resumed.load_state_dict(loader.state_dict())
    loader.close()
    first = whole[1] if at == "end" else whole[0][2 * at :]
    found = epochs(resumed, 3)
    assert found[0] == first
    assert found[1] == whole[2 if at == "end" else 1]
    assert [len(epoch) for epoch in found[1:]] == [COUNT, COUNT]


@pytest.mark.parametrize(("make", "setting"), FEWER)
def test_a_state_taken_before_the_first_batch_is_of_a_whole_epoch(make, setting):
    whole = epochs(new(make, setting), 2)
    loader = new(make, setting)
    for epoch in whole:
        iterator = iter(loader)
        resumed = new(make, setting)
        resumed.load_state_dict(loader.state_dict())
        assert epochs(resumed, 1) == [epoch]
        list(iterator)
    loader.close()


@pytest.mark.parametrize("make", [hugging_face, KeptWithState, Moved])
def test_resumed_twice_in_one_epoch(make):
    whole = epochs(new(make, {}), 3)
    state, had = None, []
    for _ in range(3):
        loader = new(make, {})
        if state is not None:
            loader.load_state_dict(state)
        had += next(iter(loader))
        state = loader.state_dict()
    loader.load_state_dict(state)  # into the loader that it came from
    rest, *later = epochs(loader, 3)
    assert [had + rest, *later[:1]] == whole[:2]
    assert len(later[1]) == COUNT


def test_a_stream_that_keeps_its_state_and_had_none_before_is_an_error():
    loader = new(Kept, {})
    next(iter(loader))
    resumed = new(Kept, {})
    resumed.load_state_dict(loader.state_dict())
    assert len(list(resumed)) == 5
    with pytest.raises(ValueError, match="Kept begins each epoch at the state that was loaded"):
        list(resumed)


def test_a_short_last_batch_is_the_end_too():
    loader = new(lambda: hugging_face(11), {})
    for last, _ in enumerate(iter(loader), -5):
        if last == 0:
            state = loader.state_dict()
    resumed = new(lambda: hugging_face(11), {})
    resumed.load_state_dict(state)
    assert [len(epoch) for epoch in epochs(resumed, 3)] == [0, 11, 11]


@pytest.mark.parametrize("make", [hugging_face, shuffled])
@pytest.mark.parametrize("setting", SETTINGS[:2])
def test_a_state_of_another_epoch_is_refused(make, setting):
    def in_epoch(epoch):
        loader = new(make, setting)
        loader.dataset.set_epoch(epoch)
        return loader

    loader = in_epoch(1)
    next(iterator := iter(loader))
    state, rest = loader.state_dict(), list(iterator)
    resumed = in_epoch(1)
    resumed.load_state_dict(state)
    assert list(resumed) == rest
    resumed = in_epoch(0)
    resumed.load_state_dict(state)
    with pytest.raises(ValueError, match=r"was in epoch 1.*call its set_epoch\(1\)"):
        list(resumed)


class OwnIterator(IterableDataset):
    """Its own iterator, which begins anew with each iter()."""

    def __iter__(self):
        self.at = 0
        return self

    def __next__(self):
        if self.at == COUNT:
            raise StopIteration
        self.at += 1
        return {"a": self.at - 1}

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.parametrize("read", [0, 2])
def test_a_data_set_that_is_its_own_iterator_goes_on_where_it_was(read):
    data = OwnIterator()
    loader = new(lambda: data, {})
    iterator = iter(loader)
    for _ in range(read):
        next(iterator)
    state = loader.state_dict()
    list(iterator)
    resumed = new(lambda: data, {})
    resumed.load_state_dict(state)
    whole = [*range(COUNT)]
    assert epochs(resumed, 2) == [whole[2 * read :], whole]


def test_the_state_of_an_end_is_taken_in_the_middle_of_another_epoch():
    loader = new(Moved, {})
    whole = epochs(new(Moved, {}), 3)
    list(loader)
    state = loader.state_dict()
    resumed = new(Moved, {})
    next(iter(resumed))
    resumed.load_state_dict(state)
    assert epochs(resumed, 2) == whole[1:]
