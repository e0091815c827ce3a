"""Every kind of image becomes upright RGB; every broken one an error with Pillow's reason."""

import io
import struct
import threading
import warnings
import zlib

import numpy as np
import PIL
import pytest
from hypothesis import given, strategies as st
from PIL import Image, ImageFile, ImageOps

from counterpoise.workers.images.decode import ImageError, image_size, open_image


def _saved(image, format="PNG", **options):  # noqa: A002
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def _turned(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def decode_image(data, target=None, **options):
    return open_image(data, **options).decode(target)


def _levels(data, **options):
    return np.asarray(decode_image(data, **options))


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("JPEG", {}), ("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
    ],
)  # fmt: skip
def test_orientation_is_honoured_in_size_and_pixels(picture, format, options, orientation):  # noqa: A002
    if options.get("compression") and orientation not in range(1, 9):
        pytest.skip("libtiff does not write invalid orientations")
    data = picture(13, 7, format, exif=_turned(orientation), **options)
    theirs = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert image_size(data) == theirs.size
    assert np.array_equal(_levels(data), np.asarray(theirs))


def test_a_png_may_carry_its_orientation_after_the_pixels(picture):
    data = picture(13, 7)
    body = b"eXIf" + _turned(6).tobytes().removeprefix(b"Exif\0\0")
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    end = data.index(b"IEND") - 4
    late = data[:end] + chunk + data[end:]
    assert image_size(late) == (7, 13)
    assert np.array_equal(_levels(late), np.rot90(_levels(data), -1))


# Pillow before 13 does not read the YCbCr that it writes.
MODES = ["1", "L", "P", "RGB", "CMYK", *(["YCbCr"] if int(PIL.__version__[:2]) >= 13 else [])]


@given(mode=st.sampled_from(MODES), size=st.integers(1, 40))
def test_plain_modes_are_as_pillow_converts_them(mode, size):
    image = Image.effect_mandelbrot((size, 9), (-3, -2.5, 2, 2.5), 50).convert("RGB").convert(mode)
    data = _saved(image, "TIFF")
    assert np.array_equal(_levels(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_alpha_is_composited_on_white(mode):
    image = Image.new("RGBA", (3, 1), (200, 0, 0, 255))
    image.putpixel((1, 0), (200, 0, 0, 0))
    image.putpixel((2, 0), (200, 0, 0, 128))
    if mode == "PA":
        data = _saved(image.convert("P"), transparency=bytes([255] * 256))
        assert decode_image(data).mode == "RGB"
        return
    grey = mode == "LA"
    data = _saved(image.convert(mode))
    opaque, clear, half = _levels(data)[0].tolist()
    assert opaque == ([60, 60, 60] if grey else [200, 0, 0])
    assert clear == [255, 255, 255]
    assert half[1] == pytest.approx(157 if grey else 127, abs=1)


@pytest.mark.parametrize("mode", ["L", "RGB", "P"])
def test_a_transparent_colour_becomes_white(mode):
    image = Image.new("RGB", (2, 1), (9, 9, 9)).convert(mode)
    image.putpixel((1, 0), (90, 90, 90) if mode == "RGB" else 90)
    clear = {"L": 90, "RGB": (90, 90, 90), "P": 90}[mode]
    pixels = _levels(_saved(image, transparency=clear))
    assert pixels[0, 1].tolist() == [255, 255, 255]
    assert pixels[0, 0].max() < 255


@given(st.lists(st.integers(0, 65535), min_size=1, max_size=50))
def test_sixteen_bits_are_scaled_and_never_wrap(values):
    deep = np.array([values], np.uint16)
    for format in ("PNG", "TIFF"):  # noqa: A001
        pixels = _levels(_saved(Image.fromarray(deep), format))
        assert np.abs(pixels[..., 0] - deep / 257.0).max() <= 0.5
        assert (pixels == pixels[..., :1]).all()


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (np.array([[0, 65535, 257]], np.int32), [0, 255, 1]),
        (np.array([[-100, 0, 100]], np.int32), [0, 128, 255]),
        (np.array([[0, 1 << 20, 1 << 19]], np.int32), [0, 255, 128]),
        (np.array([[7, 7, 7]], np.int32), [0, 0, 0]),
        (np.array([[0.0, 1.0, 0.2]], np.float32), [0, 255, 51]),
        (np.array([[0.0, 255.0, 2.0]], np.float32), [0, 255, 2]),
        (np.array([[-5.0, 5.0, np.nan]], np.float32), [0, 255, 128]),
        (np.array([[3e9, 3e9, 3e9]], np.float32), [0, 0, 0]),
        (np.array([[0.0, 0.5, np.inf]], np.float32), [0, 128, 255]),
        (np.array([[0.0, 255.0, np.inf]], np.float32), [0, 255, 255]),
        (np.array([[1.0, 255.0, -np.inf]], np.float32), [1, 255, 0]),
        (np.array([[70000.0, 70010.0, np.nan]], np.float32), [0, 255, 0]),
        (np.array([[-9.0, -5.0, np.nan]], np.float32), [0, 255, 255]),
        (np.array([[-9.0, np.inf, -np.inf]], np.float32), [0, 0, 0]),
        (np.array([[-3.4e38, 3.4e38, np.nan]], np.float32), [0, 255, 128]),
        (np.array([[0.5, 0.5, np.nan]], np.float32), [128, 128, 0]),
    ],
)
def test_deeper_images_are_scaled_by_their_range(values, wanted):
    pixels = _levels(_saved(Image.fromarray(values), "TIFF"))[0, :, 0].astype(int)
    assert np.abs(pixels - wanted).max() <= 1


@pytest.mark.parametrize("values", [[np.nan], [np.inf, -np.inf], [np.inf, np.nan]])
def test_an_image_of_no_finite_value_is_an_error(values):
    data = _saved(Image.fromarray(np.array([values], np.float32)), "TIFF")
    assert image_size(data) == (len(values), 1)
    with pytest.raises(ImageError, match="no pixel has a finite value"):
        decode_image(data)


@pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP", "TIFF"])
def test_the_first_frame_is_taken(format):  # noqa: A002
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue", "green")]
    data = _saved(frames[0], format, save_all=True, append_images=frames[1:])
    red, *_ = _levels(data)[2, 2].tolist()
    assert red > 200
    assert image_size(data) == (4, 4)


def test_the_bound_on_pixels_holds_before_anything_is_allocated(picture):
    data = picture(10, 10)
    assert image_size(data, max_pixels=100) == (10, 10)
    for read in (image_size, decode_image):
        with pytest.raises(ImageError, match="10x10 is over the limit of 99 pixels"):
            read(data, max_pixels=99)


def test_a_bomb_is_refused_from_its_header():
    header = _saved(Image.new("L", (8, 8)), "BMP")
    bomb = header[:18] + (60000).to_bytes(4, "little") * 2 + header[26:]
    with pytest.raises(ImageError, match="DecompressionBombError"):
        image_size(bomb)


@pytest.mark.parametrize("format", ["EPS", "PDF", "TGA", "ICO"])
def test_formats_that_are_not_listed_are_not_opened(picture, format):  # noqa: A002
    with pytest.raises(ImageError, match="cannot identify image file"):
        image_size(picture(format=format))


@pytest.mark.filterwarnings("error")
@given(cut=st.integers(0, 400), seed=st.integers(0, 3), noise=st.integers(0, 255))
def test_damage_is_an_image_or_an_error_and_nothing_else(picture, cut, seed, noise):
    format = ("PNG", "JPEG", "GIF", "TIFF")[seed]  # noqa: A001
    data = bytearray(picture(12, 12, format, seed=seed))
    data[cut % len(data)] = noise
    for broken in (bytes(data), bytes(data[:cut])):
        try:
            outcome = decode_image(broken).mode
        except ImageError as error:
            outcome = str(error)
        assert outcome == "RGB" or " at 0x" not in outcome


def test_probing_reads_the_header_only(picture):
    data = picture(600, 600, "PNG")
    file = io.BytesIO(data)
    assert image_size(file) == (600, 600)
    read = []

    class Counting(io.BytesIO):
        def read(self, size=-1):
            read.append(size)
            return super().read(size)

    image_size(Counting(data))
    assert sum(read) < len(data) / 100


def test_a_large_jpeg_is_decoded_reduced_and_looks_the_same(picture):
    image = Image.effect_mandelbrot((1600, 1200), (-3, -2.5, 2, 2.5), 100).convert("RGB")
    data = _saved(image, "JPEG", exif=_turned(6))
    small = decode_image(data, target=(150, 200))
    assert small.size == (300, 400)
    full = decode_image(data)
    assert full.size == (1200, 1600)
    assert decode_image(data, target=(700, 900)).size == full.size
    shapes = [np.asarray(one.resize((150, 200)), float) for one in (small, full)]
    assert np.abs(shapes[0] - shapes[1]).mean() < 3


def test_warnings_are_silent_inside_and_untouched_outside(picture, monkeypatch):
    data = picture(20, 20)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 300)  # 400 pixels: a warning, no error
    filters = list(warnings.filters)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inside = list(warnings.filters)
        assert image_size(data) == (20, 20)
        assert warnings.filters == inside
    assert warnings.filters == filters
    assert not ImageFile.LOAD_TRUNCATED_IMAGES


def test_threads_decode_the_same(picture):
    files = [picture(50, 40, "JPEG", seed=seed) for seed in range(8)]
    wanted = [_levels(data) for data in files]
    got = {}

    def work(number):
        got[number] = [np.array_equal(_levels(files[number]), wanted[number]) for _ in range(20)]

    filters = list(warnings.filters)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(all(got[number]) for number in range(8))
    assert warnings.filters == filters
