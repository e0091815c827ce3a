"""Feeds bytes to the parts that take in a stranger's: messages, patterns, shards.

A trial makes a new target and feeds it 200 inputs: real ones, changed in bytes or in fields. A
target raises only where something is wrong: an error that is no refusal, tables that grow, honest
peers that are given something else.
"""

import functools
import io
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from counterpoise.workers.sources.file_patterns import MAX_NAMES, count_names, depth
from counterpoise.workers.sources.interface import SampleError
from counterpoise.workers.tar.dataset import TarDataset
from counterpoise.workers.tar.headers import BLOCK
from tests.fuzz.outcomes import Outcome, Trial
from tests.security.hostile import (
    MOST_STATE,
    Cluster,
    Mutator,
    Wired,
    corpus,
    introduces,
    state_size,
)

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
def right_digest():
    """Return what the ranks are given in an undisturbed run."""
    return Cluster(7).run()


class Fed:
    """What is fed bytes; `draw` decides the rest, and `seeds` gives real inputs."""

    def __init__(self, draw):
        self.draw = draw


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
                assert self.cluster.digest() == right_digest()
                self._renew()

    def _renew(self):
        self.cluster = Cluster(self.draw.getrandbits(32))


class Pattern(Fed):
    """A pattern of shards: its names are counted, not made."""

    @staticmethod
    def seeds():
        return [b"a-{000..011}.tar", b"{a,b{1..3}}{x,y}", b"{1..99}{a..z}", b"pipe:cat", b"[a]*"]

    def __call__(self, data):
        text = data.decode("utf-8", "replace")
        assert 1 <= count_names(text) <= MAX_NAMES + 1
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


FED: tuple[Any, ...] = (Stranger, Pattern, Shard)


def inputs(kind: Any, draw: Random) -> Iterator[bytes]:
    """Yield the inputs of a trial: nothing, real ones, and such with changed bytes or fields."""
    yield from NOTHING if kind is not Stranger else NOTHING[1:]
    seeds = kind.seeds()
    mutator = Mutator([Wired(b"", seed[1:]) for seed in seeds], 0) if kind is Stranger else None
    for _ in range(INPUTS):
        seed = draw.choice(seeds)
        if draw.random() < 0.1:
            yield seed
        elif mutator is not None:
            mutator.random = draw
            yield draw.randbytes(1) + mutator.frame()[0]
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
