"""Feeds bytes to the parts that take in a stranger's: messages, batches, jobs, patterns, shards.

A trial makes a new target and feeds it 200 inputs: real ones, changed in bytes or in fields. A
target raises only where something is wrong: an error that is no refusal, tables that grow, honest
peers that are given something else.
"""

import functools
import io
import struct
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from counterpoise.balancer.job.jobs import PlayedJobs
from counterpoise.balancer.parties.messages import FROM_TRAINER, JoinJob
from counterpoise.balancer.parties.trainer_session import TrainerSession
from counterpoise.balancer.protocol.job_spec import from_json, to_json
from counterpoise.balancer.run.tasks import RunStart
from counterpoise.balancer.transport.wire import WireError, decode, encode
from counterpoise.loader.remote.batch_reader import BatchReader
from counterpoise.loader.remote.inbox import Inbox
from counterpoise.workers.codec.batches import decode_batch, encode_batch, frames_of
from counterpoise.workers.codec.contents import CodecError
from counterpoise.workers.sources.file_patterns import MAX_NAMES, depth, names_in
from counterpoise.workers.sources.interface import SampleError
from counterpoise.workers.tar.dataset import TarDataset
from counterpoise.workers.tar.headers import BLOCK
from tests.balancer.job.cluster import START
from tests.fuzz.outcomes import Outcome, Trial
from tests.security.hostile import (
    JOB,
    LAYOUT,
    MOST_STATE,
    Cluster,
    Mutator,
    Wired,
    check_reports,
    corpus,
    introduces,
    state_size,
)
from tests.workers.daemon.scripted import ScriptedWorker

INPUTS = 200
NOTHING = (b"", b"\0", b"\xff" * 300, bytes(3000))
STRANGERS = [b"job|stranger-0", b"job|stranger-1", b"stranger-2", b"other|stranger-3"]
SAMPLE = b"x" * 64


def check_brief(error, most):
    """A refusal is logged and sent: it must not quote all that a stranger says."""
    assert len(str(error)) < most, error


@functools.cache
def heard():
    """Return what the balancer hears in an undisturbed run."""
    return corpus()


@functools.cache
def to_peers():
    """Return what workers and trainers hear in an undisturbed run, and what the ranks are given."""
    cluster = Cluster(7)
    digest = cluster.run()
    return cluster.told, digest


class Fed:
    """What is fed bytes; `draw` decides the rest, and `seeds` gives real inputs."""

    def __init__(self, draw):
        self.draw = draw


class Wire(Fed):
    """Decoding: what is accepted says itself again. The first byte: how many frames follow."""

    @staticmethod
    def seeds():
        return [bytes([len(w.payloads)]) + w.header for w in (*heard(), *to_peers()[0])]

    def __call__(self, data):
        try:
            message = decode(data[1:], data[0])
        except WireError as error:
            check_brief(error, 400)
            return
        assert decode(encode(message), data[0]) == message


class Stranger(Fed):
    """A balancer at work, and strangers that may say anything but a valid introduction.

    However many frames they say, the honest ranks are given the same and nobody else is known. The
    first byte: who says it, with how many frames, and what happens after it.
    """

    def __init__(self, draw):
        super().__init__(draw)
        self._renew()

    @staticmethod
    def seeds():
        return [bytes([0x10]) + wired.header for wired in heard()]

    def __call__(self, data):
        control, header = data[0], data[1:]
        wired = Wired(STRANGERS[control & 3], header, (SAMPLE,) * (control >> 2 & 3))
        if introduces(wired):
            return
        self.cluster.tell(wired)
        self.cluster.forget_said()
        assert not any(map(self.cluster.jobs.jobs.get, ("other", "default")))
        assert state_size(self.cluster.jobs) < MOST_STATE
        for _ in range(control >> 4 & 3):
            if not self.cluster.step():
                assert self.cluster.digest() == to_peers()[1]
                self._renew()

    def _renew(self):
        self.cluster = Cluster(self.draw.getrandbits(32))


class Insider(Fed):
    """A balancer and peers with keys that say anything, under names of their own and others'.

    They may spoil the run, but nothing crashes, no table grows, and reports can be sent.
    """

    def __init__(self, draw):
        super().__init__(draw)
        self._renew()

    @staticmethod
    def seeds():
        names = [*STRANGERS, *Cluster().peers]
        said = [
            bytes([0x10 | names.index(wired.peer)]) + wired.header
            for wired in heard()
            if wired.peer in names
        ]
        return said + [bytes([0x10 | n % 4]) + wired.header for n, wired in enumerate(heard())]

    def __call__(self, data):
        control, header = data[0], data[1:]
        frames = 0 if control & 8 else int(b"SentFrames" in header[:16])
        names = [*STRANGERS, *self.cluster.peers]
        self.cluster.tell(Wired(names[control % len(names)], header, (SAMPLE,) * frames))
        self.cluster.forget_said()
        for _ in range(control >> 4 & 3):
            self.cluster.step()
        assert state_size(self.cluster.jobs) < MOST_STATE
        if self.draw.random() < 0.02:
            check_reports(self.cluster.jobs, self.cluster.now)
        if self.cluster.trouble:
            self._renew()

    def _renew(self):
        workers, ranks = self.draw.choice(((2, 2), (2, 0), (0, 2)))
        self.cluster = Cluster(self.draw.getrandbits(32), workers, ranks)
        for _ in range(self.draw.randrange(300)):
            self.cluster.step()


class Listeners(Fed):
    """A worker and a trainer, which hear what is said to both: what they answer can be sent."""

    def __init__(self, draw):
        super().__init__(draw)
        self.worker = ScriptedWorker()
        self.worker.open()
        session = TrainerSession((0,), to_json(JOB), LAYOUT, 2)
        batches: Any = SimpleNamespace(fields=None)
        self.trainer = Inbox(session, BatchReader(JOB, batches, True), "trainer")
        session.begin(RunStart(0, START))

    @staticmethod
    def seeds():
        return [bytes([len(w.payloads)]) + w.header for w in to_peers()[0]]

    def __call__(self, data):
        payloads = (SAMPLE,) * data[0]
        try:
            message = decode(data[1:], len(payloads))
        except WireError:
            return
        self.worker.hear(message)
        if isinstance(message, FROM_TRAINER):
            return
        self.trainer.handle(message, payloads)
        session = self.trainer.session
        for pull in session.take_pulls():
            if (batch := session.lacks(pull.rank, pull.index, pull.version)) is not None:
                self.trainer.take_piece(pull, batch.give, payloads, "a worker")
        for said in (*self.trainer.take_messages(waits=True), *session.beat(asks=True)):
            encode(said)
        if (batch := session.peek()) is not None:
            session.release(batch)


class Batch(Fed):
    """A batch's head, with frames that have any sizes: what is accepted is encoded again."""

    @staticmethod
    def seeds():
        batches = (
            {"n": 7, "f": 0.5, "text": "caf\u00e9", "raw": b"\0\1", "none": None, "odd": "\ud800"},
            {"pixels": torch.arange(24).reshape(2, 3, 4), "ids": [1, 2, 3, 4, 5, 6, 7, 8, 9]},
            [{"none": np.zeros((0, 3), np.float32), "scalar": np.float64(3)}, ("a", 1, (2,))],
            {"large": torch.zeros(400), "more": np.ones((30, 20)), "empty": torch.zeros(0, 4)},
        )
        heads = [encode_batch(batch) for batch in batches]
        return [struct.pack("<BHH", len(f) - 1, 1600, 4800) + bytes(f[0]) for f in heads]

    def __call__(self, data):
        if len(data) < 6:
            return
        number, *sizes = struct.unpack("<BHH", data[:5])
        frames = [data[5:], *(bytes(size) for size in sizes[: number % 3])]
        wanted = None if number & 4 else ("n", "large", "pixels")
        try:
            named = frames_of(frames[0], [*map(len, frames)], wanted)
            some = [frame if n in named else None for n, frame in enumerate(frames)]
            batch = decode_batch(some, wanted)
        except CodecError as error:
            check_brief(error, 1000)
            return
        if wanted is None:
            decode_batch(encode_batch(batch))


class Job(Fed):
    """A trainer's job and layout: what is accepted is the same job when it is read again."""

    @staticmethod
    def seeds():
        balanced = replace(JOB.plan, grouping="balanced", batch_size=None, budgets=(9,))
        auto = replace(balanced, accumulate="auto", mode="window")
        plans = (JOB.plan, balanced, auto)
        return [to_json(replace(JOB, plan=plan)).encode() for plan in plans] + [LAYOUT.encode()]

    def __call__(self, data):
        text = data.decode("utf-8", "replace")
        for job, layout in ((text, LAYOUT), (to_json(JOB), text)):
            jobs = PlayedJobs(1, lambda _: (b"", b""))
            jobs.handle(b"a|rank", JoinJob((0,), 0, 1, to_json(JOB), LAYOUT, 1))
            for peer in (b"a|other", b"b|rank"):  # to a job that is there, and a new one
                sends = jobs.handle(peer, JoinJob((0,), 0, 1, job, layout, 1))
                sends += jobs.tick(0.0)
                for send in sends:
                    check_brief(getattr(send.message, "reason", ""), 2200)
            check_reports(jobs, 0.0)
        try:
            again = to_json(from_json(text))
        except ValueError:
            return
        assert to_json(from_json(again)) == again


class Pattern(Fed):
    """A pattern of shards: its names are counted, not made."""

    @staticmethod
    def seeds():
        return [b"a-{000..011}.tar", b"{a,b{1..3}}{x,y}", b"{1..99}{a..z}", b"pipe:cat", b"[a]*"]

    def __call__(self, data):
        text = data.decode("utf-8", "replace")
        assert 1 <= names_in(text) <= MAX_NAMES + 1
        assert 0 <= depth(text) <= text.count("{")


class Shard(Fed):
    """A shard: a damaged one is refused, and no member reaches outside the file."""

    def __init__(self, draw):
        super().__init__(draw)
        self._folder = tempfile.TemporaryDirectory()

    @staticmethod
    def seeds():
        forms = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
        return [shard(form) for form in forms]

    def __call__(self, data):
        folder = Path(self._folder.name)
        for kept in folder.iterdir():
            kept.unlink()
        (folder / "a.tar").write_bytes(mended(data))
        try:
            dataset = TarDataset("a.tar", root=folder)
        except ValueError as error:
            check_brief(error, 2000)
            return
        for index in range(min(4, len(dataset))):
            try:
                dataset.load(index)
            except SampleError:
                continue


def shard(form):
    """Return a small tar with plain, long, absolute and odd names, a link and a folder."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        long = "d/" * (40 if form == tarfile.USTAR_FORMAT else 90) + "2.txt"
        for name in ("0.txt", "0.cls", "../1.json", "/etc/3.txt", long):
            info = tarfile.TarInfo(name)
            info.size = 3
            tar.addfile(info, io.BytesIO(b"123"))
        kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE)
        for number, kind in enumerate(kinds):
            info = tarfile.TarInfo(f"{4 + number}.txt")
            info.type, info.linkname = kind, "0.txt" if number else "/etc/passwd"
            tar.addfile(info)
    return file.getvalue()[: 30 * BLOCK]


def mended(data):
    """Return a tar with its headers' checksums set right, so that changes get past them."""
    blocks = bytearray(data)
    for at in range(0, len(blocks) - BLOCK + 1, BLOCK):
        if blocks[at + 257 : at + 262] == b"ustar":
            blocks[at + 148 : at + 156] = b" " * 8
            blocks[at + 148 : at + 156] = b"%06o\0 " % sum(blocks[at : at + BLOCK])
    return bytes(blocks)


FRAMED: tuple[Any, ...] = (Wire, Stranger, Insider, Listeners)
FED: tuple[Any, ...] = (*FRAMED, Batch, Job, Pattern, Shard)


def inputs(kind: Any, draw: Random) -> Iterator[bytes]:
    """Yield the inputs of a trial: nothing, real ones, and such with changed bytes or fields."""
    yield from NOTHING if kind not in FRAMED else NOTHING[1:]
    seeds = kind.seeds()
    mutator = Mutator([Wired(b"", seed[1:]) for seed in seeds], 0) if kind in FRAMED else None
    for _ in range(INPUTS):
        seed = draw.choice(seeds)
        if draw.random() < 0.1:
            yield seed
        elif mutator is not None:
            mutator.random = draw
            yield draw.randbytes(1) + mutator.frame()[0]
        elif kind is Job and draw.random() < 0.5:
            yield Mutator([], draw.getrandbits(32)).odd_json(seed.decode()).encode()
        else:
            data = bytearray(seed)
            for _ in range(draw.randrange(1, 5)):
                place = draw.randrange(len(data) + 1)
                data[place : place + draw.randrange(3)] = draw.randbytes(draw.randrange(3))
            yield bytes(data)


def maker_of(kind: Any) -> Callable[[Path], Trial]:
    """Return what makes the trial of a target."""

    def trial(draw: Random) -> Outcome:
        target = kind(draw)
        for data in inputs(kind, draw):
            target(data)
        return Outcome("right", kind.__name__)

    return lambda _: trial
