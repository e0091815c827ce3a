"""What video and audio share: where a file comes from, its name in errors, and its bound."""

import importlib
import io
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

# A path, the bytes of a file, or a file that is open for reading and can seek.
Media = str | os.PathLike[str] | bytes | BinaryIO
# The most bytes that decoding one file may take.
MAX_BYTES = 1 << 30
VIDEO = {"avi", "m4v", "mkv", "mov", "mp4", "mpeg", "mpg", "ogv", "webm"}
AUDIO = {"aif", "aiff", "flac", "mp3", "oga", "ogg", "opus", "wav"}


class MediaError(ValueError):
    """A file that is no usable video or audio; the message names it where its name is known."""


def is_media(extension: str) -> bool:
    """Return whether a member's extension names a video or audio.

    >>> is_media("0.mp4"), is_media("flac"), is_media("jpg")
    (True, True, False)
    """
    return is_video(extension) or is_audio(extension)


def is_video(extension: str) -> bool:
    """Return whether a member's extension names a video."""
    return extension.rpartition(".")[2] in VIDEO


def is_audio(extension: str) -> bool:
    """Return whether a member's extension names a sound."""
    return extension.rpartition(".")[2] in AUDIO


class CalledFile:
    """A file that C code reads by calling us: what fails in a call is kept, to be raised later."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.failed: OSError | None = None

    def read(self, size: int = -1) -> bytes:
        """Return bytes, none where the disk fails."""
        try:
            return self._file.read(size)
        except OSError as error:
            self.failed = error
            return b""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Return the new position; a place before the beginning, as damaged files name, is none."""
        try:
            return self._file.seek(offset, whence)
        except (OSError, ValueError):
            return self._file.tell()

    def tell(self) -> int:
        """Return the position."""
        return self._file.tell()


@contextmanager
def open_media(media: Media, name: str, failures: type[Exception]) -> Iterator[CalledFile]:
    """Give a file to read; what a decoder raises of `failures` becomes a MediaError with its name.

    Errors of the disk are raised as they are: they say nothing about the sample.
    """
    with ExitStack() as closing:
        if isinstance(media, str | os.PathLike):
            name = name or str(media)
            file: Any = closing.enter_context(Path(media).open("rb"))
        else:
            file = media if hasattr(media, "read") else io.BytesIO(media)
            file.seek(0)
        called = CalledFile(file)
        try:
            yield called
        except (MediaError, failures) as error:
            reason = str(error) if isinstance(error, MediaError) else _describe_failure(error)
            raise MediaError(f"{name}: {reason}" if name else reason) from error
        finally:
            if called.failed is not None:
                raise called.failed


def _describe_failure(error: Exception) -> str:
    """Return what a library says, without the addresses of objects that it names."""
    text = getattr(error, "strerror", None) or getattr(error, "error_string", None) or str(error)
    return f"{type(error).__name__}: {text}"


def check_bytes(needed: int, most: int, content: str) -> None:
    """Raise MediaError for what takes more bytes than allowed, before it is allocated."""
    if needed > most:
        raise MediaError(
            f"{content} are {needed:,} bytes, over the limit of {most:,}: take fewer frames, a "
            "smaller size, or give max_bytes="
        )


def import_library(name: str, purpose: str) -> Any:
    """Return a module that is imported only by who needs it; ImportError says how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{purpose} needs {name}: pip install 'counterpoise[media]'") from error
