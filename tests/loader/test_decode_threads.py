"""Balanced loaders whose workers decode in threads deliver what one thread delivers."""

import json
import os
import threading
from typing import Any

import numpy as np
import pytest

from counterpoise import DataLoader, OnError
from counterpoise.loader import LoaderError
from counterpoise.workers import Probe, SampleError
from counterpoise.workers.arena import memory
from counterpoise.workers.sources.randomness import generator
from tests.loader import balanced_data as made

COUNT = 48


class Drawn:
    """Samples with noise of their own; those of the sets are broken, missing, or kill the process.

    threaded: whether threads are to load them, but for one that is suspected.
    """

    thread_safe = True

    def __init__(
        self,
        threaded: bool,
        broken: tuple[int, ...] = (),
        missing: tuple[int, ...] = (),
        deadly: tuple[int, ...] = (),
    ) -> None:
        self.threaded, self.broken, self.missing, self.deadly = threaded, broken, missing, deadly

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.load(index, 0, 0)

    def key(self, index: int) -> str:
        return f"k{index:02}"

    def probe(self, index: int) -> Probe:
        return Probe(self.key(index), {"tokens": 1 + index * 7919 % 40})

    def load(self, index: int, epoch: int, seed: int) -> dict[str, Any]:
        in_thread = threading.current_thread() is not threading.main_thread()
        if in_thread != self.threaded and not self.deadly:
            raise RuntimeError(f"loaded by {threading.current_thread().name}")
        made.work_a_little()
        if index in self.broken:
            raise SampleError(self.key(index), "it does not decode")
        if index in self.missing:
            raise FileNotFoundError(2, "No such file or directory", f"{index}.jpg")
        if index in self.deadly:
            os._exit(9)
        tokens = 1 + index * 7919 % 40
        noise = generator(seed, epoch, self.key(index)).random((tokens, 50))
        return {"input_ids": np.arange(tokens), "noise": noise}

    def fingerprint(self) -> str:
        return "drawn"


def make(data: Any, threads: int, **given: Any) -> DataLoader[Any, Any]:
    options: dict[str, Any] = {"num_workers": 2, "balance": "balanced", "shuffle": True, **given}
    return DataLoader(data, 4, collate_fn=list, decode_threads=threads, **options)


def take(threads: int, path: Any, **given: Any) -> tuple[list[Any], list[Any]]:
    """Return what two epochs deliver, and the samples that were left out."""
    data = Drawn(threads > 1, broken=(5, 6, 30))
    loader = make(data, threads, on_error=OnError("skip", dead_letter=str(path)), **given)
    found = [
        (info.keys, made.digest(batch)) for _ in range(2) for batch, info in loader.with_info()
    ]
    loader.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return found, sorted((line["key"], line["reason"]) for line in lines)


def test_what_threads_decode_is_what_one_thread_decodes(tmp_path, monkeypatch):
    expected = take(1, tmp_path / "one.jsonl")
    assert {key for key, _ in expected[1]} == {"k05", "k06", "k30"}
    assert take(3, tmp_path / "arena.jsonl") == expected
    monkeypatch.setattr(memory, "find_memory_file_fault", lambda: "there are none")
    assert take(3, tmp_path / "inline.jsonl", num_workers=1) == expected


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"broken": (7,)}, "sample 'k07': it does not decode"),
        ({"missing": (7,)}, r"No such file or directory \(not tried again\): '7.jpg'"),
    ],
)
def test_a_sample_that_fails_in_a_thread_is_named_as_ever(wrong, text):
    loader = make(Drawn(True, **wrong), 3)
    with pytest.raises((LoaderError, OSError), match=text):
        list(loader)
    loader.close()


def test_of_samples_in_work_together_only_the_deadly_one_is_given_up():
    loader = make(Drawn(True, deadly=(9,)), 3, on_error="skip", num_workers=1)
    found = [info for _, info in loader.with_info()]
    loader.close()
    assert [key for info in found for key in info.holes] == ["k09"]
    delivered = [key for info in found for key in info.keys]
    assert sorted({*delivered, "k09"}) == [f"k{index:02}" for index in range(COUNT)]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"decode_threads": 0}, "decode_threads is 0: give the number .* 1 to 64"),
        ({"decode_threads": True}, "decode_threads is True"),
        ({"num_workers": 0}, "with num_workers=0 there is none"),
        ({"balancer": "tcp://127.0.0.1:1"}, "`counterpoise worker --threads 2`"),
        ({"dataset": made.Augmented(8)}, "decode_threads=2, but samples of Augmented may only"),
        ({"balance": None, "shuffle": False}, "decode_threads needs a balanced loader"),
    ],
)
def test_threads_that_nobody_can_have_are_refused(given, text):
    options: dict[str, Any] = {
        "dataset": Drawn(True), "num_workers": 1, "balance": "balanced", "shuffle": True,
        "decode_threads": 2, **given,
    }  # fmt: skip
    with pytest.raises(ValueError, match=text):
        DataLoader(**options)
