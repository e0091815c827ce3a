"""Decodes and measures raw samples that no transform makes anything of; imports no torch."""

import io
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..images.decode import image_size, is_image, look_at, open_image
from ..media.files import is_media
from .costs import sample_nbytes
from .interface import Probe


def decoded(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a raw sample with its images as uint8 (height, width, 3); ImageError where broken."""
    return {
        name: np.array(look_at(name, look_at(name, open_image, value).decode))
        if is_image(name)
        else value
        for name, value in raw.items()
    }


def probed(raw: Mapping[str, Any]) -> Probe:
    """Return the cost of a sample without a transform: pixels, and bytes once decoded."""
    sizes = [image_size(value) for name, value in raw.items() if is_image(name)]
    played = [raw[name].seek(0, io.SEEK_END) for name in raw if is_media(name)]
    rest = {name: raw[name] for name in raw if not (is_image(name) or is_media(name))}
    pixels = sum(width * height for width, height in sizes)
    nbytes = 3 * pixels + sum(played) + sample_nbytes(rest)
    return Probe(str(raw["__key__"]), {"pixels": pixels, "bytes": nbytes}, nbytes)


def check_reads(values: Iterable[object]) -> None:
    """Raise the OSError with which reading a file among the values failed, if one did.

    Image libraries catch errors of the disk and say that the image is broken, or lacks something.
    A file that has failed says so: `failed` of the raw file below its buffer.
    """
    for value in values:
        if isinstance(value, io.BufferedReader):
            failed = getattr(value.raw, "failed", None)
            if isinstance(failed, OSError):
                raise failed
