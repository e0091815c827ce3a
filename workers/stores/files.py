"""Opens and lists objects by URL, and reads ranges of them: what formats and indexes are made of.

A `StoreFile` says which state of an object is meant, and holds nothing open: it may be pickled, and
be used after a fork. What is open belongs to a process, and is made when that reads first.
"""

import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any

from ..sources.failures import DataChangedError
from ..sources.file_patterns import expand_braces
from ..sources.interface import Source
from ..sources.offered import find_part
from ..sources.urls import HTTP, checked_url, parse_scheme, shown
from .allowed import check_allowed
from .fsspec_store import FsspecStore
from .http_store import HttpStore
from .obstore_store import ObstoreStore, can_be_used
from .options import StoreOptions
from .read_ahead import ReadAhead
from .repeating import repeat_request

MAGIC, SUFFIX = "*?[", ".tar"
STORES: dict[str, Any] = {"obstore": ObstoreStore, **dict.fromkeys(HTTP, HttpStore)}


@dataclass(frozen=True, slots=True)
class StoreFile:
    """An object in the state in which it was found. Its text is its URL, as it may be shown."""

    url: str = field(repr=False)
    size: int
    version: str

    def __str__(self) -> str:
        return shown(self.url)

    @property
    def name(self) -> str:
        """The last part of its key."""
        return shown(self.url).removesuffix("?...").rpartition("/")[2]

    @property
    def stamp(self) -> tuple[int, int]:
        """What identifies this state: the size, and a number made of the version."""
        number = blake2b(self.version.encode(), digest_size=8).digest()
        return self.size, int.from_bytes(number, "little") >> 1

    def read_range(self, offset: int, size: int) -> bytes:
        """Return bytes of the object; OSError that names it, DataChangedError where it changed."""
        return read_ranges([(self, offset, offset + size)])[0]


def open_url(url: str) -> StoreFile:
    """Return the object at a URL, with its size.

    Raises ValueError for a URL that is malformed or may not be read here, OSError (as
    FileNotFoundError, PermissionError) where the store does not give it.
    """
    url = checked_url(url)
    check_allowed(url)
    size, version = _process().ask("state", url)
    return StoreFile(url, size, version)


def list_urls(pattern: str) -> list[StoreFile]:
    """Return the objects of a pattern, sorted: URLs with braces, globs, or a folder's *.tar.

    Raises FileNotFoundError where one is missing, or none is found, and what `open_url` raises.
    """
    urls = [checked_url(text) for text in expand_braces(pattern)]
    for url in urls:
        check_allowed(url)
    with ThreadPoolExecutor(16) as pool:
        files = [*pool.map(open_url, (url for url in urls if not _lists(url)))]
    files += [file for url in urls if _lists(url) for file in _list_files(url)]
    return sorted(dict.fromkeys(files), key=lambda file: file.url)


def _is_glob(url: str) -> bool:
    return any(mark in url for mark in MAGIC)


def _lists(url: str) -> bool:
    """Return whether a URL stands for several objects."""
    if parse_scheme(url) in HTTP:
        return url.endswith("/")
    return _is_glob(url) or not url.endswith(SUFFIX)


def _list_files(url: str) -> list[StoreFile]:
    takes_all = _is_glob(url) and url.rpartition(".")[2].isalnum()
    files = [
        StoreFile(checked_url(name), size, version)
        for name, size, version in _process().ask("list", url if _is_glob(url) else url.rstrip("/"))
        if takes_all or name.endswith(SUFFIX)
    ]
    if not files:
        reason = f"no object of the store matches, of those with {SUFFIX}"
        raise FileNotFoundError(2, reason, shown(url))
    return files


def read_ranges(ranges: Sequence[tuple[StoreFile, int, int]]) -> list[bytes]:
    """Return ranges (file, start, end), read at the same time where they were not expected."""
    for file, start, end in ranges:
        if not 0 <= start <= end <= file.size:
            fault = f"it has {file.size} bytes, not {end}"
            raise DataChangedError.at(str(file), fault)
    return _process().ahead.read(ranges)


def expect_samples(dataset: Any, samples: Iterable[tuple[int, bool]]) -> None:
    """Begin to read samples (index, whether it is probed): they are next, in this order."""
    ranges = list[tuple[StoreFile, int, int]]()
    for index, headers in samples:
        part, inside = find_part(dataset, index)
        if isinstance(part, Source):
            ranges += part.stored_ranges(inside, headers)
    _process().ahead.expect(ranges)


class _Process:
    """What this process has open."""

    def __init__(self) -> None:
        self.options = StoreOptions.from_environment()
        self.ahead = ReadAhead(self._fetch, self.options.requests, self.options.ahead)
        self._stores: dict[str, Any] = {}
        self._lock = threading.Lock()

    def ask(self, question: str, url: str) -> Any:
        """Ask the store of a URL for `state` or `list`."""
        action = getattr(self._store(parse_scheme(url)), question)
        return repeat_request(partial(action, url), url, self.options)

    def _fetch(self, file: Any, start: int, end: int) -> bytes:
        check_allowed(file.url)
        scheme = parse_scheme(file.url)
        store = self._store("obstore" if can_be_used(scheme) else scheme)
        read = partial(store.read, file.url, start, end, file.size, file.version)
        data: bytes = repeat_request(read, file.url, self.options)
        return data

    def _store(self, name: str) -> Any:
        with self._lock:
            if name not in self._stores:
                make = STORES.get(name) or partial(FsspecStore, name)
                self._stores[name] = make(self.options)
            return self._stores[name]


_of_process: list[_Process] = []
_making = threading.Lock()


def _process() -> _Process:
    with _making:
        if not _of_process:
            _of_process.append(_Process())
        return _of_process[0]


def _forget() -> None:
    """Begin anew: nothing that was open before a fork works after it."""
    global _making
    _of_process.clear()
    _making = threading.Lock()


os.register_at_fork(after_in_child=_forget)
