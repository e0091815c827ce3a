"""Threads load what is asked for next, and nothing but the time shows it."""

import errno
import threading
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest

from counterpoise.balancer.protocol.parts import SampleRef
from counterpoise.balancer.protocol.worker_session import SampleTask
from counterpoise.workers import PlainSource, Probe, SampleError, TarDataset, VisionLanguage
from counterpoise.workers.daemon.decode_threads import DecodeThreads
from counterpoise.workers.daemon.source_handler import SourceHandler
from counterpoise.workers.planned.measuring import refuse_threads
from counterpoise.workers.vision_language.token_layout import one_at_a_time

PATIENCE_S = 60.0


class Numbers:
    """A source of arrays; sample 3 is broken, and the disk fails at first for sample 2."""

    thread_safe = True
    decode_first = False

    def __init__(self):
        self.tries, self.threads = 0, set[str]()

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.load(index, 0, 0)

    def key(self, index):
        return f"k{index}"

    def probe(self, index):
        return Probe(self.key(index), {"tokens": index})

    def load(self, index, epoch, seed):
        self.threads.add(threading.current_thread().name)
        if index == 2:
            self.tries += 1
            if self.tries < 3:
                raise OSError(errno.EIO, "Input/output error")
        if index == 3:
            raise SampleError("k3", "it does not decode")
        return {"row": np.arange(index + epoch + seed)}

    def fingerprint(self):
        return "numbers"


class Measured(Numbers):
    """The same, measured by loading them."""

    decode_first = True

    def measure(self, sample):
        return {"tokens": len(sample["row"])}


def tasks(*indices, kind="decode", alone=False):
    return [SampleTask(1, kind, 1, SampleRef(10 + n, n), alone) for n in indices]


def handler_of(source, threads, pauses=None):
    sleep = (lambda _: None) if pauses is None else pauses.append
    return SourceHandler(source, ("tokens",), 7, local=True, sleep=sleep, threads=threads)


def results(source, threads, kind, pauses=None):
    """Return what a worker would send for all samples, in its order."""
    handler, open_tasks = handler_of(source, threads, pauses), tasks(*range(8), kind=kind)
    found: list[Any] = []
    for number, task in enumerate(open_tasks):
        handler.expect(open_tasks[number:])
        try:
            result = getattr(handler, kind)(task.ref, task.epoch)
        except SampleError as error:
            found.append(str(error))
        else:
            found.append((result.key, result.cost, result.header, b"".join(result.buffers)))
    handler.close()
    return found


@pytest.mark.parametrize(("kind", "source"), [("decode", Numbers), ("probe", Measured)])
def test_threads_change_no_result_no_error_and_no_retry(kind, source):
    alone, beside = source(), source()
    pauses: tuple[list[float], list[float]] = [], []
    assert results(beside, 3, kind, pauses[1]) == results(alone, 1, kind, pauses[0])
    assert pauses[0] == pauses[1] == [0.1, 0.2]
    assert alone.threads == {"MainThread"}
    assert beside.threads <= {f"cp-decode-{n}" for n in range(3)}


def test_threads_load_at_the_same_time():
    both = threading.Barrier(2)

    def load(_, index):
        return both.wait(PATIENCE_S) >= 0 and index

    threads = DecodeThreads(2)
    threads.begin([(0, 4), (0, 5)], load)
    assert [threads.take((0, index)) for index in (4, 5)] == [(4, ANY), (5, ANY)]
    threads.close()


def test_what_is_not_wanted_any_more_is_not_loaded():
    begun, release, loaded = threading.Event(), threading.Event(), []

    def load(_, index):
        begun.set()
        release.wait(PATIENCE_S)
        loaded.append(index)

    threads = DecodeThreads(1)
    threads.begin([(0, 1), (0, 2), (0, 3)], load)
    assert begun.wait(PATIENCE_S)
    threads.begin([(0, 3)], load)
    release.set()
    threads.take((0, 3))
    assert loaded == [1, 3]
    assert threads.take((0, 1)) is None
    threads.close()


def test_an_exit_in_a_thread_is_one_of_the_loop():
    threads = DecodeThreads(1)

    def load(*_):
        raise SystemExit(3)

    threads.begin([(0, 0)], load)
    with pytest.raises(SystemExit):
        threads.take((0, 0))
    threads.close()


def test_threads_end_with_the_worker():
    threads = DecodeThreads(2)
    threads.begin([(0, 0), (0, 1)], lambda *_: None)
    named = [each for each in threading.enumerate() if each.name.startswith("cp-decode")]
    assert named
    assert all(each.daemon for each in named)
    threads.close()
    assert not any(each.is_alive() for each in named)


def test_nothing_is_begun_beside_a_suspected_sample():
    source = Numbers()
    handler = handler_of(source, 3)
    handler.expect([*tasks(4, alone=True), *tasks(5, 6)])
    handler.decode(SampleRef(14, 4), 1)
    assert source.threads == {"MainThread"}
    handler.expect([*tasks(5), *tasks(4, alone=True), *tasks(6)])
    handler.decode(SampleRef(15, 5), 1)
    assert source.threads == {"MainThread", "cp-decode-0"}
    assert "cp-decode-1" not in {each.name for each in threading.enumerate()}
    handler.close()


def test_a_suspected_sample_waits_for_what_was_revoked(monkeypatch):
    order, begun, release = [], threading.Event(), threading.Event()

    class Slow(Numbers):
        def load(self, index, epoch, seed):
            begun.set()
            if index == 0:
                assert release.wait(PATIENCE_S)
            order.append(index)
            return super().load(index, epoch, seed)

    wait_until_idle = DecodeThreads.wait_until_idle

    def released(threads):
        release.set()
        wait_until_idle(threads)

    monkeypatch.setattr(DecodeThreads, "wait_until_idle", released)
    handler = handler_of(Slow(), 2)
    handler.expect(tasks(0))
    assert begun.wait(PATIENCE_S)
    handler.expect(tasks(1, alone=True))
    handler.decode(SampleRef(11, 1), 1)
    release.set()
    handler.close()
    assert order == [0, 1]


def draws(raw, rng):
    return rng.random()


def plain(raw):
    return raw


class Stateful(VisionLanguage):
    """One that has said that it keeps something."""

    thread_safe = False


def test_a_shard_may_have_threads_if_its_transform_says_so(shard, monkeypatch):
    path = shard("a.tar", {"a.txt": b"hello"})
    assert TarDataset(path).thread_safe
    assert TarDataset(path, VisionLanguage()).thread_safe
    assert PlainSource(TarDataset(path), key=str).thread_safe
    for transform in (draws, plain, Stateful()):
        assert not TarDataset(path, transform).thread_safe
    monkeypatch.setattr(draws, "thread_safe", True, raising=False)
    monkeypatch.setattr(plain, "thread_safe", True, raising=False)
    assert TarDataset(path, draws).thread_safe
    assert not TarDataset(path, plain).thread_safe  # it may draw from the global generators
    monkeypatch.setattr(plain, "deterministic", True, raising=False)
    assert TarDataset(path, plain).thread_safe


class Unsaid(Numbers):
    thread_safe = False


def test_the_error_says_what_to_do(shard):
    with pytest.raises(ValueError, match=r"Unsaid does not say that .* give it thread_safe = True"):
        refuse_threads(Unsaid(), "--threads 3")
    path = shard("a.tar", {"a.txt": b"hello"})
    with pytest.raises(ValueError, match=r"a.tar may only .* its transform plain does not say"):
        refuse_threads(TarDataset(path, plain), "--threads 3")
    with pytest.raises(ValueError, match="3 decode threads, but samples of Unsaid may only"):
        handler_of(Unsaid(), 3).open("")


def test_a_tokenizer_that_is_given_is_called_by_one_thread_at_a_time():
    held = []

    def tokenize(text):
        held.append(one_at_a_time().locked())
        return [1, 2]

    VisionLanguage(tokenize, image_token_id=5, tile_size=4)({"__key__": "a", "txt": "hello"})
    assert held
    assert all(held)
