"""A size without Pillow is the one that Pillow finds; what Pillow refuses is never let through."""

import io
import json
import struct
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from counterpoise.workers.images.decode import ImageError, image_size, open_image
from counterpoise.workers.images.header import plain_size

FORMATS = ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "PPM", "MPO"]
MODES = ["1", "L", "P", "RGB", "RGBA", "CMYK", "I;16", "LA", "YCbCr"]
XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="%d"/></x:xmpmeta>'


def looked(read, data, **options):
    """What comes of reading: a size, or the reason why not."""
    try:
        found = read(data, **options)
    except ImageError as error:
        return str(error)
    return found if isinstance(found, tuple) else found.size


@given(
    size=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    kind=st.sampled_from(FORMATS),
    mode=st.sampled_from(MODES),
    turned=st.one_of(st.none(), st.integers(0, 9)),
    options=st.fixed_dictionaries(
        {},
        optional={
            "progressive": st.booleans(),
            "dpi": st.just((72, 72)),
            "icc_profile": st.binary(min_size=1, max_size=300),
            "comment": st.binary(max_size=20),
            "xmp": st.sampled_from([b"<x:xmpmeta/>", XMP % 6, XMP % 3]),
            "optimize": st.booleans(),
            "quality": st.integers(1, 95),
        },
    ),
)
def test_pictures_of_all_kinds(size, kind, mode, turned, options):
    image = Image.new(mode, size)
    if turned is not None:
        exif = Image.Exif()
        exif[0x0112] = turned
        options["exif"] = exif
    file = io.BytesIO()
    try:
        image.save(file, kind, **options)
    except (OSError, ValueError, TypeError, SystemError):
        return  # a format that has no such mode, or no such option
    data = file.getvalue()
    assert looked(image_size, data) == looked(open_image, data) == open_image(data).decode().size


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("JPEG", {"icc_profile": bytes(3000), "comment": b"hello", "dpi": (300, 300)}),
        ("JPEG", {"xmp": b"<x:xmpmeta/>"}),
        ("PNG", {}),
        ("PNG", {"dpi": (72, 72)}),
    ],
)
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_usual_files_are_plain(picture, kind, options, mode):
    assert plain_size(picture(13, 7, kind, mode, **options)) == (13, 7)


@pytest.mark.filterwarnings("error")
@example(0, 158, b"", 400)  # the end of a table
@given(st.integers(0, 4), st.integers(0, 700), st.binary(max_size=4), st.integers(0, 900))
def test_damage_is_seen_as_pillow_sees_it(picture, seed, at, noise, cut):
    exif = Image.Exif()
    exif[0x0112], exif[0x011A] = 6, 72.0
    options = [{}, {"exif": exif, "icc_profile": bytes(40)}, {"progressive": True, "xmp": XMP % 6}]
    kind = "PNG" if seed > 2 else "JPEG"
    more = {"dpi": (72, 72), "exif": exif} if seed == 3 else {} if seed == 4 else options[seed]
    data = picture(12, 9, kind, **more)
    at %= len(data)
    for broken in (
        data[:at] + noise + data[at + len(noise) :],
        data[:at] + noise + data[at:],
        data[:cut],
    ):
        assert looked(image_size, broken) == looked(open_image, broken)


def rewritten(data: bytes, at: int, fresh: bytes) -> bytes:
    """A PNG file with other bytes in its first chunk, whose sum is made to fit."""
    data = data[:at] + fresh + data[at + len(fresh) :]
    return data[:29] + struct.pack(">I", zlib.crc32(data[12:29])) + data[33:]


@given(st.integers(16, 28), st.binary(min_size=1, max_size=2))
def test_a_png_of_a_kind_that_there_is_not_is_refused(picture, at, fresh):
    data = rewritten(picture(12, 9), at, fresh[: 29 - at])
    assert looked(image_size, data) == looked(open_image, data)


@given(st.integers(0, 11), st.binary(min_size=1, max_size=2))
def test_a_frame_of_another_kind_is_left_to_pillow(picture, at, fresh):
    data = picture(12, 9, "JPEG")
    at += data.index(b"\xff\xc0") + 1
    data = data[:at] + fresh + data[at + len(fresh) :]
    assert looked(image_size, data) == looked(open_image, data)


SEGMENTS = st.sampled_from(
    [b"JFIF\0", b"Adobe\0", b"ICC_PROFILE\0", b"MPF\0", b"Photoshop 3.0\0", b"Exif\0\0", b"8BIM",
     b"http://ns.adobe.com/xap/1.0/\0", b"FPXR\0", b"\x01\x01\x04\x04", bytes(4), XMP % 8]
)  # fmt: skip


@given(
    st.lists(
        st.tuples(st.integers(0xC0, 0xFE), st.lists(SEGMENTS, max_size=3), st.integers(0, 20)),
        max_size=4,
    )
)
def test_segments_of_every_kind_are_taken_as_pillow_takes_them(picture, segments):
    data = picture(12, 9, "JPEG")
    written = b""
    for kind, parts, cut in segments:
        body = b"".join(parts)
        body = body[: len(body) - cut] if cut < len(body) else body
        written += bytes([0xFF, kind]) + (len(body) + 2).to_bytes(2) + body
    for broken in (data[:2] + written + data[2:], data[:20] + written + data[20:]):
        assert looked(image_size, broken) == looked(open_image, broken)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_bounds_on_pixels_hold(picture, monkeypatch, kind):
    data = picture(20, 20, kind)
    assert image_size(data, max_pixels=400) == (20, 20)
    with pytest.raises(ImageError, match="20x20 is over the limit of 399 pixels"):
        image_size(data, max_pixels=399)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 199)
    with pytest.raises(ImageError, match="DecompressionBombError"):
        image_size(data)


def test_a_file_is_read_from_its_beginning(picture):
    file = io.BytesIO(picture(20, 10, "JPEG"))
    file.seek(7)
    assert image_size(file) == (20, 10)


def test_the_awkward_files_are_taken_as_before(data):
    for name in json.loads((data / "awkward/manifest.json").read_text()):
        content = (data / "awkward" / name["file"]).read_bytes()
        assert looked(image_size, content) == looked(open_image, content)
