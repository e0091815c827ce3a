"""What may be done to the parts that take in a stranger's bytes: a function of bytes for each.

A target is given any bytes and raises only where something is wrong: an error that is no refusal,
tables that grow, honest peers that are given something else. `seeds` makes each target's first
inputs from real messages. `fuzz_guided.py` feeds them by coverage, `test_fuzz_targets.py` by
chance.
"""

import io
import random
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

import msgpack
import numpy as np

from counterpoise.balancer.coordinator.peers.admission import why_rank_refused
from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.protocol.job_spec import from_json, to_json
from counterpoise.balancer.protocol.messages import FROM_WORKER, RankHello
from counterpoise.balancer.protocol.parts import EpochPosition
from counterpoise.balancer.protocol.rank_session import RankSession
from counterpoise.balancer.protocol.worker_session import WorkerSession
from counterpoise.balancer.transport.wire import WireError, decode, encode
from counterpoise.workers.codec.fields import CodecError
from counterpoise.workers.codec.frames import decode as decode_sample
from counterpoise.workers.codec.frames import encode as encode_sample
from counterpoise.workers.codec.frames import payload_of
from counterpoise.workers.sources.file_patterns import MAX_NAMES, depth, names_in
from counterpoise.workers.sources.interface import SampleError
from counterpoise.workers.tar.dataset import TarDataset
from counterpoise.workers.tar.headers import BLOCK
from tests.security.fuzz import MOST_STATE, are_registered, state_size, to_peers
from tests.security.hostile import JOB, Cluster, Wired, corpus, introduces

STRANGERS = [b"stranger-%d" % n for n in range(4)]
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
    """A coordinator at work, and strangers that may say anything but a valid introduction.

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
        self.cluster.heard.clear()
        honest = {*self.cluster.workers, *self.cluster.ranks}
        assert set(self.cluster.coordinator.peer_states) <= honest
        assert state_size(self.cluster.coordinator) < MOST_STATE
        for _ in range(control >> 4 & 3):
            if not self.cluster.step():
                assert self.cluster.digest() == self.honest
                self._renew()

    def _renew(self):
        self.life += 1
        self.cluster = Cluster(self.life)


class InsiderTarget:
    """A coordinator and peers with keys that say anything, under names of their own and others'.

    They may spoil the run, but nothing crashes, no table grows, and payloads stay in the budget.
    """

    name = "insider"

    def __init__(self):
        self.said = 0
        self._renew()

    def seeds(self):
        names = [*STRANGERS, *Cluster().workers, *Cluster().ranks]
        heard = corpus()
        said = [bytes([0x10 | names.index(wired.peer)]) + wired.header for wired in heard]
        return said + [bytes([0x10 | n % 4]) + wired.header for n, wired in enumerate(heard)]

    def __call__(self, data):
        if not data:
            return
        control, header = frame_of(data)
        frames = 0 if control & 8 else int(b"DecodeDone" in header[:16])
        names = [*STRANGERS, *self.cluster.workers, *self.cluster.ranks]
        peer = names[control % len(names)]
        self.cluster.tell(Wired(peer, header, (b"x" * SAMPLE_BYTES,) * frames))
        self.cluster.heard.clear()
        for _ in range(control >> 4 & 3):
            self.cluster.step()
        coordinator = self.cluster.coordinator
        assert state_size(coordinator) < MOST_STATE
        assert are_registered(coordinator)
        if coordinator.run is not None:
            held = coordinator.run.delivery.budget.held_bytes
            assert 0 <= held <= coordinator.job.buffer_bytes + SAMPLE_BYTES
        self.said += 1
        if self.cluster.trouble or self.said % LIFE == 0:
            self._renew()

    def _renew(self):
        there = random.Random(self.said).choice(((2, True), (2, False), (0, True)))
        self.cluster = Cluster(self.said, workers=there[0], honest_ranks=there[1])
        for _ in range(self.said * 37 % 300):
            self.cluster.step()


class SessionsTarget:
    """What a worker's and a rank's session and a trainer's reader do with what they hear."""

    name = "sessions"

    def __init__(self):
        self.said = 0

    def seeds(self):
        return [bytes([len(w.payloads)]) + w.header for w in to_peers()]

    def __call__(self, data):
        if not data:
            return
        if self.said % 200 == 0:
            self.worker, self.rank = WorkerSession(), RankSession((0,), "", 2, 1)
            self.rank.begin(0, EpochPosition(0, 0, 0, 0, ""))
        self.said += 1
        count, header = frame_of(data)
        payloads = (b"x" * SAMPLE_BYTES,) * count
        try:
            message = decode(header, count)
        except WireError:
            return
        if not isinstance(message, FROM_WORKER):
            self.worker.handle(message)
            self.worker.next_lease()
            self.rank.handle(message, payloads)
            self.rank.new_requests()
            if (arrival := self.rank.peek()) is not None:
                self.rank.release(arrival)


class CodecTarget:
    """A sample's header and payload: what is accepted is what encoding it again gives."""

    name = "codec"

    def seeds(self):
        samples = (
            {"n": 7, "f": 0.5, "text": "caf\u00e9", "raw": b"\0\1"},
            {"pixels": np.arange(24, dtype=np.uint8).reshape(2, 3, 4), "ids": np.arange(5)},
            {"none": np.zeros((0, 3), np.float32), "scalar": np.float64(3).reshape(())},
        )
        encoded = [encode_sample(sample) for sample in samples]
        packed = [(msgpack.packb(header), bytes(payload_of(b))) for header, b in encoded]
        return [len(header).to_bytes(2, "little") + header + payload for header, payload in packed]

    def __call__(self, data):
        size = int.from_bytes(data[:2], "little")
        header, payload = data[2 : 2 + size], data[2 + size :]
        try:
            sample = decode_sample(msgpack.unpackb(header), payload)
        except (CodecError, ValueError, msgpack.exceptions.UnpackException):
            return
        again, buffers = encode_sample(sample)
        assert "fields" in again
        assert list(decode_sample(again, payload_of(buffers))) == list(sample)


class JobTarget:
    """A trainer's job: what is accepted is the same job when it is written and read again."""

    name = "job"

    def seeds(self):
        balanced = replace(JOB.plan, grouping="balanced", batch_size=None, budgets=(9,))
        auto = replace(balanced, accumulate="auto", mode="window")
        plans = (JOB.plan, balanced, auto)
        return [to_json(replace(JOB, plan=plan)).encode() for plan in plans]

    def __call__(self, data):
        hello = RankHello((0,), data.decode("utf-8", "replace"))
        check_brief(why_rank_refused(JOB, hello, make_planner), 1200)
        try:
            text = to_json(from_json(hello.job))
        except ValueError:
            return
        assert to_json(from_json(text)) == text


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
    for target in (WireTarget, StrangerTarget, InsiderTarget, SessionsTarget, CodecTarget,
                   JobTarget, PatternTarget, ShardTarget)
}  # fmt: skip
FRAMES = ("wire", "stranger", "insider", "sessions")
