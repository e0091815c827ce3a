"""A disk that fails for a moment costs a pause; one that stays broken is named, never a hole."""

import errno
import io
import os
from typing import Any

import numpy as np
import pytest
from PIL import Image

from counterpoise import OnError, Ranks
from counterpoise.loader import Balance, DataLoader
from counterpoise.loader.balanced.arguments import find_resources
from counterpoise.workers import TarDataset, VisionLanguage
from counterpoise.workers.planned.measuring import Measurer
from counterpoise.workers.sources.cache_files import read_or_remove, write_arrays
from counterpoise.workers.sources.failures import RETRIES, classify_failure
from counterpoise.workers.sources.plain import PlainSource
from counterpoise.workers.tar.shard_files import LOCAL_WHOLE_BYTES
from tests.loader import balanced_data as made
from tests.tars import write_tar


class FlakySource(PlainSource):
    """Its disk fails so many times before each answer."""

    def __init__(self, failures, error=None):
        super().__init__(["abc", "de"], cost={"tokens": [3, 2]})
        self.failures, self.error, self.tries = failures, error, 0

    def _fail(self):
        self.tries += 1
        if self.tries <= self.failures:
            raise self.error or OSError(errno.EIO, "Input/output error")

    def probe(self, index):
        self._fail()
        return super().probe(index)

    def load(self, index, epoch, seed):
        self._fail()
        return super().load(index, epoch, seed)


def measurer_of(source):
    pauses = []
    return Measurer(source, ("tokens",), 0, pauses.append), pauses


@pytest.mark.parametrize(("work", "expected"), [("cost", (2,)), ("load", "de")])
def test_a_moment_of_trouble_is_waited_out(work, expected):
    source = FlakySource(2)
    measurer, pauses = measurer_of(source)
    assert getattr(measurer, work)(1, 0) == expected
    assert pauses == [0.1, 0.2]


@pytest.mark.parametrize("work", ["cost", "load"])
def test_trouble_that_stays_is_an_io_error_with_source_and_cause(work):
    source = FlakySource(99)
    measurer, pauses = measurer_of(source)
    with pytest.raises(OSError, match=r"Input/output error \(tried 4 times\): 'list'") as raised:
        getattr(measurer, work)(1, 0)
    assert raised.value.errno == errno.EIO
    assert classify_failure(raised.value) == "io"
    assert (source.tries, tuple(pauses)) == (1 + len(RETRIES), RETRIES)


@pytest.mark.parametrize(
    ("error", "tries", "words"),
    [
        (FileNotFoundError(2, "No such file", "a.tar"), 1, "No such file (not tried again): 'a."),
        (PermissionError(13, "denied", "a.tar"), 1, "denied (not tried again): 'a.tar'"),
        (TimeoutError("no answer"), 4, "TimeoutError: no answer (tried 4 times): 'list'"),
        (ConnectionResetError("gone"), 4, "gone (tried 4 times): 'list'"),
    ],
)
def test_what_cannot_pass_is_not_tried_again(error, tries, words):
    source = FlakySource(99, error)
    measurer, _ = measurer_of(source)
    with pytest.raises(OSError, match="tried") as raised:
        measurer.load(0, 0)
    assert words in str(raised.value)
    assert source.tries == tries
    assert classify_failure(raised.value) == "io"


def test_the_costs_names_are_asked_for_patiently():
    class Untold(FlakySource):
        resources = None  # those that the first sample has

    pauses = []
    assert find_resources(Untold(2), Balance(), pauses.append) == ("tokens",)
    assert pauses == [0.1, 0.2]


class Unreadable(made.Augmented):
    """Sample 7 lies on a broken part of the disk."""

    def __getitem__(self, index):
        if index == 7:
            raise OSError(errno.EIO, "Input/output error", "disk-7.bin")
        return super().__getitem__(index)


def test_a_broken_disk_ends_the_run_and_makes_no_hole(tmp_path, monkeypatch):
    monkeypatch.setattr("counterpoise.workers.planned.measuring.RETRIES", (0.0, 0.0, 0.0))
    letters = tmp_path / "letters.jsonl"
    loader = DataLoader(
        Unreadable(16),
        balance=Balance(grouping="isf", samples_per_step=8, accumulate="auto"),
        ranks=Ranks(virtual=1),
        shuffle=True,
        collate_fn=made.as_list,
        on_error=OnError("skip", dead_letter=str(letters)),
    )
    with pytest.raises(OSError, match="sample 'k0007'") as raised:
        list(loader)
    for words in ("Input/output error (tried 4 times)", "'disk-7.bin'"):
        assert words in str(raised.value)
    assert letters.read_text() == ""


class FailingDisk:
    """In os.pread's place: fails once, at the n-th read."""

    def __init__(self, at):
        self.at, self.failed, self.pread = at, False, os.pread

    def __call__(self, *arguments):
        self.at -= 1
        if self.at == 0:
            self.failed = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self.pread(*arguments)


def large_image(kind):
    """A turned image of more than a shard's piece that is read whole."""
    pixels = np.random.default_rng(0).integers(0, 256, (300, 200, 3), np.uint8)
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(file, kind, **({} if kind == "GIF" else {"exif": exif}))
    assert file.tell() > LOCAL_WHOLE_BYTES
    return file.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP", "GIF"])
def test_no_image_is_measured_wrongly_because_the_disk_failed(tmp_path, monkeypatch, kind):
    write_tar(tmp_path / "a.tar", {f"k.{kind.lower()}": large_image(kind)})
    transform = VisionLanguage(tile_size=28, max_tiles=6, tokens_per_tile=4)
    right = TarDataset(tmp_path / "a.tar", transform, cache=tmp_path / "right").probe(0).cost
    for at in range(1, 100):
        dataset = TarDataset(tmp_path / "a.tar", transform, cache=tmp_path / f"{at}")
        disk = FailingDisk(at)
        with monkeypatch.context() as patched:
            patched.setattr(os, "pread", disk)
            try:
                found: Any = dataset.probe(0).cost
            except Exception as error:
                found = error
        if not disk.failed:
            break
        assert found == right or (found.errno, found.filename) == (
            errno.EIO,
            str(tmp_path / "a.tar"),
        )
    assert at > 1
    assert found == right


@pytest.mark.parametrize("lack", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_kept_file_stays_where_the_process_lacks_what_reading_takes(tmp_path, monkeypatch, lack):
    path = tmp_path / "kept"
    assert write_arrays(path, (1,), {"rows": np.arange(3)})

    def lacking(*_: Any, **__: Any) -> int:
        raise OSError(lack, os.strerror(lack))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", lacking)
        assert read_or_remove(path, (1,), dict, "rows") is None
    assert read_or_remove(path, (1,), dict, "rows") is not None
