"""Opens and lists objects by URL, and reads ranges of them: what formats and indexes are made of.

A `StoreFile` says which state of an object is meant, and holds nothing open: it may be pickled, and
be used after a fork. What is open belongs to a process, and is made when that reads first.
"""

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any

from ..sources.failures import DataChangedError
from ..sources.file_patterns import expand_braces
from ..sources.urls import HTTP, checked_url, scheme_of, shown, split_url
from .allowed import check_allowed
from .block_cache import BlockCache
from .fsspec_store import FsspecStore
from .http_store import HttpStore
from .obstore_store import ObstoreStore, can_be_used
from .options import StoreOptions
from .ranges import Range
from .read_ahead import ReadAhead
from .repeating import repeated

MAGIC = "*?["


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

    def now(self) -> "StoreFile":
        """Return the object as it is now."""
        return open_url(self.url)

    def read_at(self, offset: int, size: int) -> bytes:
        """Return bytes of the object; OSError that names it, DataChangedError where it changed."""
        return read_ranges([(self, offset, offset + size)])[0]

    def close(self) -> None:
        """Do nothing: connections are the process's, for all files of a store."""


def open_url(url: str) -> StoreFile:
    """Return the object at a URL, with its size.

    Raises ValueError for a URL that is malformed or may not be read here, OSError (as
    FileNotFoundError, PermissionError) where the store does not give it.
    """
    url = checked_url(url)
    check_allowed(url)
    size, version = _process().ask("state", url)
    return StoreFile(url, size, version)


def list_urls(pattern: str, suffix: str = ".tar") -> list[StoreFile]:
    """Return the objects of a pattern, sorted: URLs with braces, globs, or a folder's *`suffix`.

    Raises FileNotFoundError where one is missing, or none is found, and what `open_url` raises.
    """
    found = list[StoreFile]()
    urls = [checked_url(each) for each in expand_braces(pattern)]
    for url in urls:
        check_allowed(url)
    single = [url for url in urls if not _lists(url, suffix)]
    with ThreadPoolExecutor(16) as pool:
        found += pool.map(open_url, single)
    for url in urls:
        if _lists(url, suffix):
            found += _listed(url, suffix)
    return sorted(dict.fromkeys(found), key=lambda each: each.url)


def _lists(url: str, suffix: str) -> bool:
    """Return whether a URL stands for several objects."""
    if scheme_of(url) in HTTP:
        return url.endswith("/")
    return any(mark in url for mark in MAGIC) or not url.endswith(suffix)


def _listed(url: str, suffix: str) -> Iterator[StoreFile]:
    is_glob = any(mark in url for mark in MAGIC)
    count = 0
    for name, size, version in _process().ask("list", url if is_glob else url.rstrip("/")):
        if not name.endswith(suffix) and not (is_glob and url.rpartition(".")[2].isalnum()):
            continue
        count += 1
        yield StoreFile(checked_url(name), size, version)
    if not count:
        raise FileNotFoundError(
            2, f"no object of the store matches, of those with {suffix}", shown(url)
        )


def read_ranges(ranges: Sequence[tuple[StoreFile, int, int]]) -> list[bytes]:
    """Return ranges (file, start, end), read at the same time where they were not expected."""
    for file, start, end in ranges:
        if not 0 <= start <= end <= file.size:
            what = f"it has {file.size} bytes, not {end}"
            raise DataChangedError.at(str(file), what)
    return _process().ahead.read(ranges)


def expect_ranges(ranges: Iterable[tuple[StoreFile, int, int]]) -> None:
    """Begin to read ranges: they are asked for next, in this order, and no others."""
    _process().ahead.expect(ranges)


class _Process:
    """What this process has open."""

    def __init__(self) -> None:
        self.options = StoreOptions.from_environment()
        self.ahead = ReadAhead(self._fetch, self.options.requests, self.options.ahead)
        self._cache = BlockCache(self.options.cache) if self.options.cache else None
        self._stores: dict[str, Any] = {}
        self._lock = threading.Lock()

    def ask(self, question: str, url: str) -> Any:
        """Ask the store of a URL for `state` or `list`."""
        action = getattr(self._store(scheme_of(url)), question)
        return repeated(partial(action, url), url, self.options)

    def _fetch(self, file: Any, start: int, end: int) -> bytes:
        check_allowed(file.url)
        if self._cache is None:
            return self._request(file, (start, end))
        fetch = partial(self._request, file)
        return self._cache.read(file.url, file.version, file.size, (start, end), fetch)

    def _request(self, file: StoreFile, span: Range) -> bytes:
        scheme = split_url(file.url)[0]
        store = self._store("obstore" if can_be_used(scheme) else scheme)
        read = partial(store.read, file.url, *span, file.size, file.version)
        found: bytes = repeated(read, file.url, self.options)
        return found

    def _store(self, name: str) -> Any:
        with self._lock:
            if name not in self._stores:
                self._stores[name] = (
                    HttpStore(self.options)
                    if name in HTTP
                    else ObstoreStore(self.options)
                    if name == "obstore"
                    else FsspecStore(name, self.options)
                )
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
