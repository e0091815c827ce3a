"""A plain header is read as tarfile reads it; everything else is left to tarfile."""

import io
import tarfile
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, strategies as st

from counterpoise.workers.tar import headers
from counterpoise.workers.tar.headers import plain_file
from counterpoise.workers.tar.index import scan

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
TYPES = [tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.CONTTYPE]
INFOS = st.builds(
    dict,
    name=st.text("ab./é漢 ", min_size=1, max_size=120),
    size=st.sampled_from([0, 1, 511, 512, 513, 8**11 - 1, 8**11, 1 << 40]),
    mode=st.sampled_from([0, 0o644, 0o7777777]),
    uid=st.sampled_from([0, 1000, 0o7777777, 0o10000000]),
    mtime=st.sampled_from([0, 1.5e9, 8**11, -1]),
    uname=st.sampled_from(["", "root", "é"]),
    type=st.sampled_from(TYPES),
)


def header_of(about: dict, kind: Literal[0, 1, 2]) -> bytes:
    """The last block of the header that tarfile writes; what is before it are extensions."""
    info = tarfile.TarInfo()
    for name, value in about.items():
        setattr(info, name, value)
    try:
        return info.tobuf(kind, "utf-8")[-512:]
    except ValueError:  # what a format cannot hold
        return bytes(512)


def theirs(header: bytes) -> tuple[str, int] | None:
    try:
        info = tarfile.TarInfo.frombuf(header, "utf-8", "backslashreplace")
    except tarfile.HeaderError:
        return None
    return (info.name, info.size) if info.isreg() else None


@given(INFOS, st.sampled_from(FORMATS))
def test_it_says_what_tarfile_says_or_nothing(about, kind):
    header = header_of(about, kind)
    assert plain_file(header) in (None, theirs(header))


@given(INFOS, st.sampled_from(FORMATS), st.integers(0, 511), st.binary(min_size=1, max_size=3))
def test_damage_is_left_to_tarfile(about, kind, at, noise):
    header = header_of(about, kind)
    damaged = (header[:at] + noise + header[at + len(noise) :])[:512]
    assert plain_file(damaged) in (None, theirs(damaged))


@given(st.integers(0, 511), st.integers(1, 127))
def test_a_checksum_that_was_made_to_fit_hides_nothing(at, level):
    header = bytearray(header_of({"name": "a.jpg", "size": 5}, tarfile.USTAR_FORMAT))
    header[at] = (header[at] + level) % 256
    header[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(header))[0]  # type: ignore[attr-defined]
    assert plain_file(bytes(header)) in (None, theirs(bytes(header)))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", ["a.jpg", "d/" * 49 + "a.jpg"])
def test_headers_as_they_are_written_everywhere_are_plain(kind, name):
    assert plain_file(header_of({"name": name[-100:], "size": 7}, kind)) == (name[-100:], 7)


MEMBERS = st.lists(
    st.tuples(
        st.text("abé/", min_size=1, max_size=8).map(lambda text: text.strip("/") + ".txt"),
        st.integers(0, 1100),
        st.sampled_from([0, 8**11]),
    ),
    max_size=5,
)


def outcome(path: Path) -> object:
    """What a scan finds, or the text of its error."""
    try:
        index = scan(path)
    except ValueError as error:
        return str(error)
    return [(index.name(row), index.sample(row)) for row in range(len(index))]


@given(
    members=MEMBERS, kind=st.sampled_from(FORMATS), names=st.sampled_from(["", "x" * 130]),
    cut=st.integers(0, 12000), spot=st.integers(0, 12000), noise=st.binary(max_size=4),
)  # fmt: skip
def test_a_scan_ends_as_one_by_tarfile_alone(
    tmp_path_factory, members, kind, names, cut, spot, noise
):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as tar:
        for number, (name, size, uid) in enumerate(members):
            info = tarfile.TarInfo(f"{names}{number}{name}")
            info.size, info.uid = size, uid if kind != tarfile.USTAR_FORMAT else 0
            if names and kind == tarfile.USTAR_FORMAT:
                info.name = f"{names}/{number}{name}"  # in two parts: prefix and name
            try:
                tar.addfile(info, io.BytesIO(bytes(size)))
            except ValueError:  # ustar cannot hold the name
                continue
    data = bytearray(file.getvalue())
    data[spot : spot + len(noise)] = noise
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    for content in (file.getvalue(), bytes(data), file.getvalue()[:cut]):
        path.write_bytes(content)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(headers, "plain_file", lambda _: None)
            slow = outcome(path)
        assert outcome(path) == slow
