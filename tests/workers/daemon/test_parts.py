"""What a worker makes of its parts, keeps, and tells of itself."""

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from counterpoise.balancer.job.messages import (
    JobNotOpened,
    JobOpened,
    NameSamples,
    PulledFrames,
    PullFrames,
    SampleNames,
)
from counterpoise.balancer.pool.messages import (
    SAMPLES,
    FreeParts,
    PartBroken,
    PartMade,
    PartMeasured,
)
from counterpoise.balancer.protocol.trace_messages import StartTrace, TraceSpans
from counterpoise.workers.codec.batches import decode_batch
from counterpoise.workers.codec.local_frames import decode_local, encode_local
from counterpoise.workers.daemon.job_worker import LOOK_S
from counterpoise.workers.sources.interface import Source
from counterpoise.workers.sources.plain import as_source
from counterpoise.workers.stores import files
from tests.workers.daemon.played import job_of
from tests.workers.daemon.scripted import Numbers, ScriptedWorker, load, measure, tokens_of

WORKERS = {"kind": "workers", "takes_empty": True}


def opened(dataset: Any = None, layout: Any = None, job: Any = None, **more: Any) -> ScriptedWorker:
    source = None if dataset is None else as_source(dataset, tokens_of)
    made = ScriptedWorker(source, **more)
    told = made.open(layout=layout, job=job)
    assert isinstance(told, JobOpened), told
    return made


def test_what_is_made_is_kept_until_it_is_freed() -> None:
    worker = opened()
    made, other = worker.hear(load(5, 1, 2), load(6, 3))
    assert (made.number, made.serial, other.number, other.serial) == (5, 1, 6, 2)
    assert decode_batch(worker.worker.store.find_frames(1))["x"][:, 0].tolist() == [1, 2]
    worker.hear(FreeParts((1,)))
    assert worker.kept() == [2]


def test_a_piece_of_samples_has_them_as_they_are() -> None:
    worker = opened(layout={"kind": "samples"})
    (made,) = worker.hear(load(5, 1, 2, form=SAMPLES))
    samples = decode_batch(worker.worker.store.find_frames(made.serial))
    assert [sample["x"].tolist() for sample in samples] == [[1] * 400, [2] * 400]


def test_a_part_that_is_dropped_while_it_is_in_work_leaves_nothing() -> None:
    class Dropping(Numbers):
        def __getitem__(self, index: int) -> Any:
            worker.worker._session.take(FreeParts((), (5,)))
            return super().__getitem__(index)

    worker = opened(Dropping(30))
    assert worker.hear(load(5, 1, 2)) == []
    assert worker.kept() == []


def test_frames_are_sent_through_the_balancer_where_it_asks() -> None:
    worker = opened()
    worker.hear(load(5, 1, 2))
    token = worker.worker.store.token
    (sent,) = worker.hear(PullFrames(1, token, 1, ()))
    assert sent == PulledFrames(1, len(worker.frames))
    assert decode_batch(worker.frames)["x"][:, 0].tolist() == [1, 2]
    assert worker.hear(PullFrames(99, token, 99, ())) == [PulledFrames(99, 0)]


def test_samples_that_measuring_has_loaded_are_not_loaded_again() -> None:
    dataset = Numbers(30)
    worker = opened(dataset)
    (measured,) = worker.hear(measure(5, 1, 2))
    assert measured.kept == (0, 1)
    assert worker.kept() == []
    (made,) = worker.hear(load(6, 1, 2))
    assert isinstance(made, PartMade)
    assert dataset.loaded == [1, 2]


def test_of_samples_that_measuring_has_loaded_a_part_of_its_memory_is_kept() -> None:
    worker = ScriptedWorker()
    worker.worker.keep_at_most(4 * 3 * 3200)
    worker.open()
    (measured,) = worker.hear(measure(5, 1, 2, 3, 4, 5))
    assert isinstance(measured, PartMeasured)
    assert measured.kept == (0, 1, 2)


def test_beats_name_the_sample_in_work() -> None:
    class Beating(Numbers):
        def __getitem__(self, index: int) -> Any:
            beats.append(worker.worker.beat())
            return super().__getitem__(index)

    beats: list[Any] = []
    worker = opened(Beating(30), job=job_of(on_error="skip"))
    worker.hear(load(5, 7, 8))
    assert [(beat.number, beat.index) for beat in beats] == [(5, 7), (5, 8)]
    worker.worker.leaving = True
    idle = worker.worker.beat()
    assert (idle.number, idle.index, idle.leaving, idle.kept) == (0, -1, True, ((5, 1),))
    assert idle.cpu_ms > 0


def test_beats_say_what_may_be_kept_which_is_less_once_another_job_has_come() -> None:
    worker = opened()
    before = worker.worker.beat()
    worker.worker.keep_at_most(1 << 10)
    assert (before.most_bytes, worker.worker.beat().most_bytes) == (1 << 20, 1 << 10)


def test_what_samples_are_called_is_told_without_loading_them() -> None:
    worker = opened(Numbers(30, bad=frozenset({7})))
    assert worker.hear(NameSamples((7, 3))) == [SampleNames((7, 3), ("7", "3"))]


class Clock:
    """Time passes when a sample is loaded."""

    def __init__(self, took_s: float) -> None:
        self.now, self.took_s = 100.0, took_s

    def monotonic(self) -> float:
        return self.now


class Timed(Numbers):
    def __init__(self, clock: Clock) -> None:
        super().__init__(30)
        self.clock = clock
        self.busy: list[int] = []
        self.worker: Any = None

    def __getitem__(self, index: int) -> Any:
        self.clock.now += self.clock.took_s
        self.busy.append(self.worker.beat().busy_ms)
        return super().__getitem__(index)


def timed(monkeypatch: pytest.MonkeyPatch, took_s: float) -> tuple[ScriptedWorker, Timed]:
    clock = Clock(took_s)
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    dataset = Timed(clock)
    worker = opened(dataset)
    dataset.worker = worker.worker
    return worker, dataset


@pytest.mark.parametrize(("took_s", "expected"), [(0.01, [[], [5], [5, 6]]), (0.0, [[], [], []])])
def test_what_was_made_is_told_before_a_part_that_takes_long(
    monkeypatch: pytest.MonkeyPatch, took_s: float, expected: list[list[int]]
) -> None:
    clock, told = Clock(took_s), list[list[int]]()

    class Looking(Numbers):
        def __getitem__(self, index: int) -> Any:
            told.append([said.number for said in worker.sent])
            clock.now += took_s
            return super().__getitem__(index)

    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    worker = opened(Looking(30))
    worker.is_quick = True
    worker.hear(load(5, 7), load(6, 8), load(7, 9))
    assert told == expected


def test_beats_say_how_long_the_worker_was_at_work(monkeypatch) -> None:
    worker, dataset = timed(monkeypatch, 0.25)
    worker.hear(load(5, 7, 8))
    dataset.clock.now += 10
    worker.hear(load(6, 9))
    assert dataset.busy == [250, 500, 750]
    assert worker.worker.beat().busy_ms == 750


@pytest.mark.parametrize(("took_s", "looks"), [(LOOK_S / 100, 2), (2 * LOOK_S, 5)])
def test_messages_are_looked_for_as_time_passes_and_when_all_is_done(
    monkeypatch, took_s, looks
) -> None:
    worker, _ = timed(monkeypatch, took_s)
    worker.looks, worker.is_quick = 0, True
    worker.hear(*(load(number, number) for number in range(1, 5)))
    assert worker.looks == looks


class Safe(Source):
    """A source that several threads may ask; beats: what its worker's said meanwhile."""

    thread_safe = True

    def __init__(self) -> None:
        self.beats: list[Any] = []
        self.threads: set[threading.Thread] = set()
        self.seeds: set[int] = set()
        self.worker: Any = None

    def __len__(self) -> int:
        return 30

    def key(self, index: int) -> str:
        return str(index)

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError

    def load(self, index: int, epoch: int, seed: int) -> Any:  # noqa: ARG002
        self.beats.append(self.worker.beat())
        self.seeds.add(seed)
        self.threads.add(threading.current_thread())
        return {"x": np.full(3, index)}

    def fingerprint(self) -> str:
        return "safe"


def test_threads_load_samples_side_by_side_and_beats_name_none() -> None:
    source = Safe()
    worker = ScriptedWorker(source, threads=2)
    source.worker = worker.worker
    worker.open()
    (made,) = worker.hear(load(5, 7, 8, 9))
    assert decode_batch(worker.worker.store.find_frames(1))["x"][:, 0].tolist() == [7, 8, 9]
    assert [(beat.number, beat.index) for beat in source.beats] == [(5, -1)] * 3
    assert made.number == 5
    worker.worker.close()
    assert source.threads
    assert not any(thread.is_alive() for thread in source.threads)


def test_threads_are_refused_where_samples_are_not_loaded_by_several() -> None:
    told = ScriptedWorker(threads=2).open()
    assert isinstance(told, JobNotOpened)
    assert "2 decode threads" in told.reason


class Odd:
    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd) and other.value == self.value


def odd_batch(samples: list[Any]) -> dict[str, Any]:
    return {"when": Odd(len(samples))}


def test_a_batch_that_cannot_travel_names_its_field_and_what_to_do() -> None:
    worker = opened(layout=WORKERS, collate=odd_batch)
    (broken,) = worker.hear(load(5, 1, 2))
    assert isinstance(broken, PartBroken)
    assert "batch['when'] is of type Odd" in broken.error
    assert "from the transform or collate_fn" in broken.error
    assert worker.kept() == []


def test_on_the_trainers_own_host_any_object_travels() -> None:
    worker = opened(layout=WORKERS, collate=odd_batch, encode=encode_local)
    (made,) = worker.hear(load(5, 1, 2))
    assert decode_local(worker.worker.store.find_frames(made.serial)) == {"when": Odd(2)}


def test_a_function_of_the_trainers_that_is_not_there_is_missed_at_the_start() -> None:
    told = ScriptedWorker().open(layout=WORKERS)
    assert isinstance(told, JobNotOpened)
    assert "only a trainer's own workers have it" in told.reason


def drawn(samples: list[Any]) -> dict[str, Any]:
    return {"drawn": torch.rand(3)}


def test_what_a_collate_function_draws_is_the_same_at_every_worker() -> None:
    made = []
    for _ in range(2):
        worker = opened(layout=WORKERS, collate=drawn)
        worker.hear(load(5, 1, 2))
        made.append(decode_batch(worker.worker.store.find_frames(1))["drawn"])
    assert torch.equal(*made)


def test_a_batch_of_no_samples_is_made_where_the_job_takes_them() -> None:
    worker = opened(layout=WORKERS, collate=len)
    (made,) = worker.hear(load(5))
    assert decode_batch(worker.worker.store.find_frames(made.serial)) == 0


def test_a_sample_that_cannot_be_used_is_left_out_where_the_job_says_so() -> None:
    worker = opened(Numbers(30, frozenset({2})), job=job_of(on_error="skip"))
    (made,) = worker.hear(load(5, 1, 2))
    assert [failed.place for failed in made.failed] == [1]
    assert decode_batch(worker.worker.store.find_frames(made.serial))["x"][:, 0].tolist() == [1]


def test_samples_are_drawn_from_the_jobs_seed() -> None:
    source = Safe()
    worker = ScriptedWorker(source)
    source.worker = worker.worker
    worker.open()
    worker.hear(load(5, 1))
    assert source.seeds == {job_of().plan.seed}


def test_labels_of_batches_are_counted_where_the_job_counts_them() -> None:
    class Labelled(Numbers):
        def __getitem__(self, index: int) -> Any:
            labels = torch.tensor([5, 6, -100, 8])
            return super().__getitem__(index) | {"labels": labels}

    for shifts, count in ((True, 4), (False, 6)):
        worker = opened(Labelled(30), job=job_of(label_tokens="batch", shift_labels=shifts))
        (made,) = worker.hear(load(5, 1, 2))
        assert made.label_tokens == count


def test_who_counts_is_told_of_each_part_and_what_became_of_it() -> None:
    told: list[Any] = []
    worker = opened(count=lambda *both: told.append(both))
    parts = measure(5, 1, 2), load(6, 3)
    answers = worker.hear(*parts)
    assert told == [*zip(parts, answers, strict=True)]


def test_a_trace_has_a_span_of_each_part() -> None:
    worker = opened()
    (started,) = worker.hear(StartTrace(0))
    assert isinstance(started, TraceSpans)
    worker.worker._trace.until = float("inf")
    worker.hear(measure(5, 1, 2), load(6, 3))
    worker.worker._trace.until = 0.0
    (spans,) = worker.hear()
    told = [(span.kind, span.ordinals) for span in spans.spans]
    assert told == [("measure", (1, 2)), ("load", (3,))]


def test_stores_are_told_of_the_parts_that_wait(monkeypatch) -> None:
    told: list[list[int]] = []

    def expect(_source: Any, samples: Any) -> None:
        told.append([index for index, _ in samples])

    monkeypatch.setattr(files, "expect_samples", expect)
    source = as_source(Numbers(30), tokens_of)
    source.reads_stores = True
    worker = ScriptedWorker(source)
    worker.open()
    worker.hear(load(5, 1, 2), load(6, 3), load(7, 4))
    assert told == [[1, 2, 3, 4], [3, 4], [4]]
