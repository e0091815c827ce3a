"""What may be done to the parts that take in a stranger's bytes: a function of bytes for each.

A target is given any bytes and raises only where something is wrong: an error that is no refusal,
tables that grow, honest peers that are given something else. `seeds` makes each target's first
inputs from real messages. `fuzz_guided.py` feeds them by coverage, `test_fuzz_targets.py` by
chance.
"""

import io
import random
import struct
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from counterpoise.balancer.job.jobs import PlayedJobs
from counterpoise.balancer.parties.messages import JoinJob
from counterpoise.balancer.protocol.job_spec import from_json, to_json
from counterpoise.balancer.transport.wire import WireError, decode, encode
from counterpoise.workers.codec.batches import decode_batch, encode_batch, frames_of
from counterpoise.workers.codec.contents import CodecError
from counterpoise.workers.sources.file_patterns import MAX_NAMES, depth, names_in
from counterpoise.workers.sources.interface import SampleError
from counterpoise.workers.tar.dataset import TarDataset
from counterpoise.workers.tar.headers import BLOCK
from tests.security.fuzz import MOST_STATE, Listeners, check_reports, state_size, to_peers
from tests.security.hostile import JOB, LAYOUT, Cluster, Wired, corpus, introduces

STRANGERS = [b"job|stranger-0", b"job|stranger-1", b"stranger-2", b"other|stranger-3"]
# A cluster is taken anew after so many frames, so that an input's history stays short.
LIFE = 2000
SAMPLE_BYTES = 64


def frame_of(data):
    """(control, header): the first byte says who, how many payload frames, what happens after."""
    return data[0], data[1:]


def check_brief(error, most):
    """A refusal is logged and sent: it must not quote all that a stranger says."""
    assert len(str(error)) < most, error


class WireTarget:
    """Decoding: what is accepted says itself again."""

    name = "wire"

    def seeds(self):
        return [bytes([len(w.payloads)]) + w.header for w in (*corpus(), *to_peers())]

    def __call__(self, data):
        if not data:
            return
        payloads, header = frame_of(data)
        try:
            message = decode(header, payloads)
        except WireError as error:
            check_brief(error, 400)
            return
        assert decode(encode(message), payloads) == message


class StrangerTarget:
    """A balancer at work, and strangers that may say anything but a valid introduction.

    However many frames they say, the honest ranks are given the same and nobody else is known.
    """

    name = "stranger"

    def __init__(self):
        self.honest = Cluster(7).run()
        self.life = 0
        self._renew()

    def seeds(self):
        return [bytes([0x10]) + wired.header for wired in corpus()]

    def __call__(self, data):
        if not data:
            return
        control, header = frame_of(data)
        payloads = (b"x" * SAMPLE_BYTES,) * (control >> 2 & 3)
        wired = Wired(STRANGERS[control & 3], header, payloads)
        if introduces(wired):
            return
        self.cluster.tell(wired)
        self.cluster.forget_said()
        assert not any(map(self.cluster.jobs.jobs.get, ("other", "default")))
        assert state_size(self.cluster.jobs) < MOST_STATE
        for _ in range(control >> 4 & 3):
            if not self.cluster.step():
                assert self.cluster.digest() == self.honest
                self._renew()

    def _renew(self):
        self.life += 1
        self.cluster = Cluster(self.life)


class InsiderTarget:
    """A balancer and peers with keys that say anything, under names of their own and others'.

    They may spoil the run, but nothing crashes, no table grows, and reports can be sent.
    """

    name = "insider"

    def __init__(self):
        self.said = 0
        self._renew()

    def seeds(self):
        names = [*STRANGERS, *Cluster().peers]
        heard = corpus()
        said = [
            bytes([0x10 | names.index(wired.peer)]) + wired.header
            for wired in heard
            if wired.peer in names
        ]
        return said + [bytes([0x10 | n % 4]) + wired.header for n, wired in enumerate(heard)]

    def __call__(self, data):
        if not data:
            return
        control, header = frame_of(data)
        frames = 0 if control & 8 else int(b"SentFrames" in header[:16])
        names = [*STRANGERS, *self.cluster.peers]
        peer = names[control % len(names)]
        self.cluster.tell(Wired(peer, header, (b"x" * SAMPLE_BYTES,) * frames))
        self.cluster.forget_said()
        for _ in range(control >> 4 & 3):
            self.cluster.step()
        assert state_size(self.cluster.jobs) < MOST_STATE
        self.said += 1
        if self.said % 50 == 0:
            check_reports(self.cluster.jobs, self.cluster.now)
        if self.cluster.trouble or self.said % LIFE == 0:
            self._renew()

    def _renew(self):
        there = random.Random(self.said).choice(((2, True), (2, False), (0, True)))
        self.cluster = Cluster(self.said, workers=there[0], ranks=there[1])
        for _ in range(self.said * 37 % 300):
            self.cluster.step()


class ListenersTarget:
    """What a worker and a trainer do with what they hear."""

    name = "listeners"

    def __init__(self):
        self.said = 0

    def seeds(self):
        return [bytes([len(w.payloads)]) + w.header for w in to_peers()]

    def __call__(self, data):
        if not data:
            return
        if self.said % 200 == 0:
            self.listeners = Listeners()
        self.said += 1
        payloads, header = frame_of(data)
        self.listeners.hear(header, (b"x" * SAMPLE_BYTES,) * payloads)


class BatchTarget:
    """A batch's head, with frames that have any sizes: what is accepted is encoded again."""

    name = "batch"

    def seeds(self):
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


class JobTarget:
    """A trainer's job and layout: what is accepted is the same job when it is read again."""

    name = "job"

    def seeds(self):
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


class PatternTarget:
    """A pattern of shards: its names are counted, not made."""

    name = "pattern"

    def seeds(self):
        return [b"a-{000..011}.tar", b"{a,b{1..3}}{x,y}", b"{1..99}{a..z}", b"pipe:cat", b"[a]*"]

    def __call__(self, data):
        text = data.decode("utf-8", "replace")
        assert 1 <= names_in(text) <= MAX_NAMES + 1
        assert 0 <= depth(text) <= text.count("{")


class ShardTarget:
    """A shard: a damaged one is refused, and no member reaches outside the file."""

    name = "shard"

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name) / "a.tar"

    def seeds(self):
        return [shard(kind) for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT,
                                         tarfile.PAX_FORMAT)]  # fmt: skip

    def __call__(self, data):
        for kept in Path(self._folder.name).iterdir():
            kept.unlink()
        self.path.write_bytes(mended(data))
        try:
            dataset = TarDataset("a.tar", root=self._folder.name)
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
    """Return a tar with its headers' checksums set right, so that mutations get past them."""
    blocks = bytearray(data)
    for at in range(0, len(blocks) - BLOCK + 1, BLOCK):
        if blocks[at + 257 : at + 262] == b"ustar":
            blocks[at + 148 : at + 156] = b" " * 8
            told = b"%06o\0 " % sum(blocks[at : at + BLOCK])
            blocks[at + 148 : at + 156] = told
    return bytes(blocks)


TARGETS = {
    target.name: target
    for target in (WireTarget, StrangerTarget, InsiderTarget, ListenersTarget, BatchTarget,
                   JobTarget, PatternTarget, ShardTarget)
}  # fmt: skip
FRAMES = ("wire", "stranger", "insider", "listeners")
