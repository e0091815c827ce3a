"""Several workers read the first samples; what is found is the same as by one."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import get_worker_info

from counterpoise.balancer.planning.problem.shuffle import permutation
from counterpoise.loader import DataLoader
from tests.loader.auto import auto_data as data

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
COUNT = 200
FIRST = permutation(COUNT, 0, 0)[:64].tolist()


class Told(data.Texts):
    """Writes down who reads which sample."""

    def __init__(self, notes: Path) -> None:
        super().__init__(COUNT)
        self.notes = notes

    def __getitem__(self, index: int) -> dict[str, Any]:
        with self.notes.open("a") as file:
            file.write(f"{index} {os.getpid()} {get_worker_info().id}\n")
        return super().__getitem__(index)


class Unsendable(data.SomeBroken):
    """Of some samples a part cannot be pickled, of others what was pickled cannot be read."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**super().__getitem__(index), "tag": (lambda: 0) if index % 2 else Opaque()}


class Opaque:
    """What cannot be read again."""

    def __reduce__(self) -> Any:
        return int, ("x",)


class Deadly(data.Texts):
    """Ends the process that reads a sample."""

    def __init__(self, index: int) -> None:
        super().__init__(COUNT)
        self.index = index

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.index:
            os._exit(9)
        return super().__getitem__(index)


class Unreadable(data.Texts):
    """The disk fails from a sample on."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in FIRST[1:]:
            raise FileNotFoundError(2, "no such file", f"{index}.json")
        return super().__getitem__(index)


def make(dataset: Any, workers: int, **changes: Any) -> DataLoader:
    return DataLoader(
        dataset, 4, shuffle=True, num_workers=workers, collate_fn=data.pad, balance="auto",
        **changes,
    )  # fmt: skip


def refuse(number: int) -> None:
    if number == 1:
        raise RuntimeError("worker 1 finds no disk")


@pytest.mark.parametrize("dataset", [data.Texts(COUNT), data.Drawing(COUNT), Unsendable(COUNT)])
def test_any_number_of_workers_finds_the_same(dataset: Any) -> None:
    found = []
    for workers in (0, 1, 3):
        loader = make(dataset, workers, on_error="skip")
        found.append((len(loader), loader.state_dict()["auto"]))
    assert "input_ids" in found[0][1]
    assert len({*found}) == 1


def test_each_worker_reads_its_part_of_the_first_samples_once(tmp_path: Path) -> None:
    len(make(Told(tmp_path / "notes"), 3))
    rows = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    assert sorted(int(index) for index, _, _ in rows) == sorted(FIRST)
    assert len({pid for _, pid, _ in rows}) == 3
    assert Counter(number for _, _, number in rows) == {"0": 22, "1": 21, "2": 21}


@pytest.mark.parametrize("place", [0, 1, 63])
def test_a_sample_that_ends_a_reader_is_named(place: int) -> None:
    words = rf"ended with status 9, and is at sample '{FIRST[place]}'"
    with pytest.raises(ValueError, match=words):
        len(make(Deadly(FIRST[place]), 3))
    # which replaces workers
    assert len(make(Deadly(FIRST[place]), 3, on_error="skip")) == COUNT // 4


def test_what_ends_the_first_samples_is_said_as_by_one_worker() -> None:
    said = []
    for workers in (1, 3):
        with pytest.raises(ValueError, match=rf"FileNotFoundError.*{FIRST[1]}\.json") as raised:
            len(make(Unreadable(COUNT), workers))
        said.append(str(raised.value))
    assert said[0] == said[1]
    with pytest.raises(ValueError, match="worker 1 finds no disk"):
        len(make(data.Texts(COUNT), 3, worker_init_fn=refuse))
