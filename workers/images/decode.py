"""Decodes image files to upright RGB with Pillow, within bounds.

Only formats that Pillow decodes in this process are opened (EPS would start ghostscript). The
header is read first: size, orientation and the bound on pixels are known before any pixel is
allocated, and probing stops there. Pillow's own bounds (`Image.MAX_IMAGE_PIXELS`, text chunks)
stay in force; `max_pixels` can only be stricter. An invalid EXIF orientation counts as 1. Of an
animation the first frame is taken.

Every mode becomes RGB: depths are scaled without wrapping, alpha is composited on white. Integers
and floats deeper than 8 bits carry no range of their own. `I;16` is scaled by 65535; `I` and `F` by
the smallest usual range that holds their values (F: 1, 255; both: 65535), else by their own minimum
and maximum. Only finite values decide: infinite ones become white and black, NaN is taken for 0, or
the end of the range next to it. An image without finite values is an error.
"""

import io
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from PIL import Image

Floats = np.ndarray[Any, np.dtype[np.float64]]
WHITE = (255, 255, 255)


def to_rgb(image: Image.Image) -> Image.Image:
    """Return a loaded image in mode RGB."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode[:1] in ("I", "F"):
        return Image.fromarray(_scaled(image)).convert("RGB")
    if image.has_transparency_data:
        return _on_white(image)
    return image.convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    # convert() copies even where nothing is to be done
    rgba = image if image.mode == "RGBA" else image.convert("RGBA")
    alpha = rgba.getchannel("A")
    if alpha.getextrema() == (255, 255):
        return rgba.convert("RGB")
    white = Image.new("RGB", rgba.size, WHITE)
    white.paste(rgba, mask=alpha)
    return white


def _scaled(image: Image.Image) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return uint8 (height, width) of a 16-bit, 32-bit or float image."""
    deep = np.asarray(image)
    if image.mode.startswith("I;16"):
        grey = ((deep.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    else:
        grey = _by_range(deep.astype(np.float64), image.mode).astype(np.uint8)
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        grey[deep == clear] = 255
    return grey


def _by_range(values: Floats, mode: str) -> Floats:
    """Return values in 0..255, in place; the range is that of the finite ones."""
    finite = np.isfinite(values)
    low = float(values.min(initial=np.inf, where=finite))
    high = float(values.max(initial=-np.inf, where=finite))
    if low > high:
        raise ImageError("no pixel has a finite value: all are infinite or NaN")
    for top in (1.0, 255.0, 65535.0) if mode == "F" else (65535.0,):
        if low >= 0 and high <= top:
            low, high = 0.0, top
            break
    np.nan_to_num(values, copy=False, nan=0.0, posinf=high, neginf=low).clip(low, high, out=values)
    values -= low
    values *= 255 / max(high - low, 1e-300)
    return values.round()


T = TypeVar("T")
MAX_PIXELS = 178_956_970
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TIFF", "WEBP")
EXTENSIONS = {
    *("avif", "bmp", "gif", "jfif", "jp2", "jpe", "jpeg", "jpg"),
    *("pbm", "pgm", "png", "pnm", "ppm", "tif", "tiff", "webp"),
}
ORIENTATION = 0x0112
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Decoders may shrink to no less than this multiple of the size asked for, as Pillow's thumbnail().
GAP = 2
_silence = threading.Lock()


class ImageError(ValueError):
    """Bytes that are not a usable image; the message is Pillow's reason."""


def is_image(extension: str) -> bool:
    """Return whether a member's extension names an image.

    >>> is_image("img0.jpg"), is_image("json")
    (True, False)
    """
    return extension.rpartition(".")[2] in EXTENSIONS


def look_at(name: str, look: Callable[..., T], *given: Any) -> T:
    """Return look(*given); an ImageError begins with the member's name."""
    try:
        return look(*given)
    except ImageError as error:
        raise ImageError(f"{name}: {error}") from error


@dataclass(frozen=True, slots=True)
class OpenedImage:
    """An image whose header has been read: its upright size in pixels is known."""

    file: Image.Image
    orientation: int

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) after EXIF rotation."""
        width, height = self.file.size
        return (height, width) if self.orientation >= 5 else (width, height)

    def decode(self, target: tuple[int, int] | None = None) -> Image.Image:
        """Return the first frame, upright, in mode RGB; alpha is composited on white. Once only.

        With `target` (width, height, upright) a JPEG file is decoded at a reduced size where that
        still has twice the target's pixels each way. Raises ImageError with Pillow's reason.
        """
        image, orientation = self.file, self.orientation
        with _blaming_the_data():
            if target is not None:
                width, height = target[::-1] if orientation >= 5 else target
                image.draft(None, (GAP * width, GAP * height))
            # TIFF files warn on load too, so one thread at a time loads them
            with _quietly() if image.format == "TIFF" else nullcontext():
                image.load()
            upright = to_rgb(image)
            return upright.transpose(UPRIGHT[orientation]) if orientation > 1 else upright


def open_image(data: bytes | BinaryIO | Path, max_pixels: int = MAX_PIXELS) -> OpenedImage:
    """Read an image's header; ImageError if it is no image or has more than `max_pixels`.

    data: a file's bytes, a file that is open, or its path.
    """
    data = data.read_bytes() if isinstance(data, Path) else data
    file = io.BytesIO(data) if isinstance(data, bytes) else data
    with _blaming_the_data(), _quietly():
        Image.init()
        image = Image.open(file, formats=[name for name in FORMATS if name in Image.OPEN])
        width, height = image.size
        if width * height > max_pixels:
            raise ImageError(f"{width}x{height} is over the limit of {max_pixels} pixels")
        if width < 1 or height < 1:
            raise ImageError(f"{width}x{height} has no pixels")
        return OpenedImage(image, _orientation(image, file))


def image_size(data: bytes | BinaryIO | Path, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Return (width, height) after EXIF rotation, from the header alone; ImageError otherwise."""
    if isinstance(data, Path):
        with data.open("rb") as opened:
            return image_size(opened, max_pixels)
    return open_image(data, max_pixels).size


def _orientation(image: Image.Image, file: BinaryIO) -> int:
    if image.format == "TIFF":  # Pillow turns these itself, in size when opened, in pixels on load
        return 1
    if image.format == "PNG" and "exif" not in image.info:
        # PngImageFile.getexif would decode the whole image to look for a late chunk
        late = _late_exif(file)
        if late:
            image.info["exif"] = late
    try:
        found = Image.Image.getexif(image).get(ORIENTATION, 1)
    except Exception:  # broken EXIF is no reason to lose the pixels
        return 1
    return found if found in UPRIGHT else 1


def _late_exif(file: BinaryIO) -> bytes:
    """Return a PNG file's eXIf chunk, wherever it stands, or b''; the file's position stays."""
    kept = file.tell()
    at = 8
    try:
        while True:
            file.seek(at)
            head = file.read(8)
            size, kind = int.from_bytes(head[:4], "big"), head[4:]
            if len(head) < 8 or kind == b"IEND":
                return b""
            if kind == b"eXIf":
                return b"Exif\x00\x00" + file.read(size) if size <= 1 << 16 else b""
            at += size + 12
    finally:
        file.seek(kept)


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence warnings. This swaps process-wide filters, so one thread at a time may do it."""
    with _silence, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _blaming_the_data() -> Iterator[None]:
    """Turn any error of a decoder into ImageError; errors of the disk (with errno) pass."""
    try:
        yield
    except ImageError:
        raise
    except OSError as error:
        if error.errno is not None:
            raise
        raise ImageError(_reason(error)) from error
    except Exception as error:  # decoders raise nearly every type on broken input
        raise ImageError(_reason(error)) from error


def _reason(error: Exception) -> str:
    """Return type and message without the address of the file object, which differs every run."""
    text = re.sub(r" <[^<>]* at 0x[0-9a-f]+>", "", str(error))
    return f"{type(error).__name__}: {text}"


def decoded(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a raw sample with its images as uint8 (height, width, 3); ImageError where broken."""
    return {
        name: np.array(look_at(name, look_at(name, open_image, value).decode))
        if is_image(name)
        else value
        for name, value in raw.items()
    }
