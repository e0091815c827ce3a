"""Which way up a picture is, read as Pillow reads it, or left to Pillow."""

import io
import struct

from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from counterpoise.workers.images.decode import open_image
from counterpoise.workers.images.header import orientation

ENTRIES = st.lists(
    st.tuples(
        st.sampled_from([0x0112, 0x0128, 0x011A, 0x010F, 0x8769]),
        st.sampled_from([1, 2, 3, 3, 3, 4, 5, 7, 9, 12, 13, 99]),
        st.sampled_from([0, 1, 1, 1, 2, 5, 1 << 31]),
        st.integers(0, 70),
    ),
    max_size=5,
)


def block(order: str, entries: list[tuple[int, int, int, int]], rest: bytes = bytes(24)) -> bytes:
    head = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}IH", 8, len(entries))
    listed = b"".join(
        struct.pack(f"{order}HHI", *entry[:3])
        + (
            struct.pack(f"{order}H", entry[3]) + b"\0\0"
            if entry[1] == 3
            else struct.pack(f"{order}I", entry[3])
        )
        for entry in entries
    )
    return b"Exif\0\0" + head + listed + rest


def jpeg_with(exif: bytes) -> bytes:
    file = io.BytesIO()
    Image.new("L", (3, 2)).save(file, "JPEG")
    segment = b"\xff\xe1" + (len(exif) + 2).to_bytes(2) + exif
    return file.getvalue()[:2] + segment + file.getvalue()[2:]


@given(st.sampled_from("<>"), ENTRIES, st.integers(0, 40))
def test_it_says_what_pillow_says_or_nothing(order, entries, rest):
    exif = block(order, entries, bytes(range(rest)))
    found = orientation(exif)
    if found is not None:
        assert found == open_image(jpeg_with(exif)).orientation


@given(st.sampled_from("<>"), st.integers(6, 70), st.binary(max_size=20), st.integers(0, 90))
def test_damage_is_left_to_pillow(order, at, noise, cut):
    exif = block(order, [(0x011A, 5, 1, 38), (0x0112, 3, 1, 6)])
    for damaged in (exif[:at] + noise + exif[at + len(noise) :], exif[: max(6, cut)]):
        found = orientation(damaged)
        if found is not None:
            assert found == open_image(jpeg_with(damaged)).orientation


def test_what_cameras_write_is_read():
    for order in "<>":
        for turned in range(1, 9):
            entries = [(0x0112, 3, 1, turned), (0x011A, 5, 1, 50), (0x0128, 3, 1, 2)]
            assert orientation(block(order, entries)) == turned
        assert orientation(block(order, [(0x0112, 3, 1, 9)])) == 1
        assert orientation(block(order, [])) == 1
