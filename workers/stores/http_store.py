"""Reads ranges over http and https, with connections that are kept, one for each thread.

The standard library's client, for its caller sees what matters here: each redirect and each address
before it is used, whether the server has understood the range, and whether all of it came.
"""

import contextlib
import functools
import http.client
import re
import ssl
import threading
import time
from collections.abc import Iterator
from urllib.parse import urljoin

from ..sources.failures import DataChangedError
from ..sources.urls import HTTP, checked_url, parse_host, parse_scheme, shown
from .allowed import check_address, check_allowed
from .options import StoreOptions
from .repeating import NO_RANGES, NoAnswerError, RefusedError

MOST_REDIRECTS = 5
REDIRECTS = (301, 302, 303, 307, 308)
PASSING = (408, 425, 429, 500, 502, 503, 504)
CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})")
# A server that sends a little of a range from time to time is as good as none.
LEAST_BYTES_S = 100_000


class HttpStore:
    """Objects behind http(s) URLs; servers list nothing."""

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        self._threads = threading.local()

    def state(self, url: str) -> tuple[int, str]:
        """Return the size and version of an object; by a range, as a signed URL allows no HEAD."""
        with self._request(url, 0, 1, "") as answer:
            match = CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            if answer.status != 206 or match is None:
                raise RefusedError(NO_RANGES)
            return int(match[3]), _read_version(answer)

    def read(self, url: str, start: int, end: int, size: int, version: str) -> bytes:
        """Return the bytes from start to end of an object that has this size and version."""
        with self._request(url, start, end, version) as answer:
            if answer.status != 206:
                raise RefusedError(NO_RANGES)
            match = CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            if match is None or (int(match[1]), int(match[2])) != (start, end - 1):
                raise NoAnswerError("it sent another range than was asked for")
            if int(match[3]) != size or _read_version(answer) != version:
                raise DataChangedError.at(shown(url))
            return self._read_body(answer, end - start)

    def list(self, url: str) -> list[tuple[str, int, str]]:  # noqa: ARG002
        """Raise RefusedError: http has no listing."""
        raise RefusedError(
            "an http server lists nothing: name each shard, as https://host/train-{000..099}.tar"
        )

    def _read_body(self, answer: http.client.HTTPResponse, size: int) -> bytes:
        deadline = time.monotonic() + self._options.timeout + size / LEAST_BYTES_S
        data = bytearray()
        while len(data) < size:
            part = answer.read1(size - len(data))
            if not part:
                raise NoAnswerError(f"it sent {len(data)} bytes of {size}")
            data += part
            if time.monotonic() > deadline:
                raise NoAnswerError(f"it sent {len(data)} bytes of {size} within its time")
        return bytes(data)

    @contextlib.contextmanager
    def _request(
        self, url: str, start: int, end: int, version: str
    ) -> Iterator[http.client.HTTPResponse]:
        """Ask for a range; the connection is kept only where all was read."""
        at = url
        for _ in range(MOST_REDIRECTS + 1):
            place = (parse_scheme(at), *parse_host(at))
            connection, is_read = self._open_connection(place), False
            try:
                answer = _ask(connection, at, start, end, version)
                if answer.status not in REDIRECTS:
                    _check_status(answer)
                    yield answer
                    is_read = answer.isclosed()
                    return
                at = _find_target(at, answer)
            except http.client.HTTPException:
                raise NoAnswerError("its answer was cut off, or is none of http") from None
            except TimeoutError:
                raise NoAnswerError(f"no answer within {self._options.timeout:g} s") from None
            finally:
                # What has not been read would be taken for the next answer.
                if not is_read:
                    connection.close()
        raise RefusedError(f"more than {MOST_REDIRECTS} redirects")

    def _open_connection(self, place: tuple[str, str, int]) -> http.client.HTTPConnection:
        connections: dict[tuple[str, str, int], http.client.HTTPConnection]
        connections = self._threads.__dict__.setdefault("connections", {})
        if place not in connections:
            scheme, host, port = place
            timeout = self._options.timeout
            if scheme == "https":
                connections[place] = _Encrypted(host, port, timeout=timeout, context=_make_tls())
            else:
                connections[place] = _Plain(host, port, timeout=timeout)
        return connections[place]


class _Plain(http.client.HTTPConnection):
    """A connection to an address that was checked, and is not looked up again."""

    def connect(self) -> None:
        super().connect()
        check_address(self.host, self.sock.getpeername()[0])


class _Encrypted(http.client.HTTPSConnection):
    """As _Plain, with TLS; nothing is asked before the check."""

    def connect(self) -> None:
        super().connect()
        check_address(self.host, self.sock.getpeername()[0])


@functools.cache
def _make_tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _ask(
    connection: http.client.HTTPConnection, url: str, start: int, end: int, version: str
) -> http.client.HTTPResponse:
    path = "/" + url.partition("://")[2].partition("/")[2]
    headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
    if version.startswith('"'):
        headers["If-Match"] = version
    connection.request("GET", path, headers=headers)
    return connection.getresponse()


def _read_version(answer: http.client.HTTPResponse) -> str:
    return str(answer.headers.get("ETag") or answer.headers.get("Last-Modified") or "")


def _check_status(answer: http.client.HTTPResponse) -> None:
    """Raise the error that a status stands for, if it does."""
    status = answer.status
    if status in (200, 206):
        return
    if status in PASSING:
        raise NoAnswerError(f"http status {status}")
    if status in (401, 403, 407):
        raise PermissionError
    if status in (404, 410):
        raise FileNotFoundError
    if status in (412, 416):
        raise DataChangedError.at("")
    raise RefusedError(f"http status {status} for a range of it")


def _find_target(url: str, answer: http.client.HTTPResponse) -> str:
    """Return where a redirect leads to, which must be allowed as the first URL must."""
    try:
        target = checked_url(urljoin(url, answer.headers.get("Location", "")))
        if (
            parse_scheme(target) not in HTTP
            or (parse_scheme(url), parse_scheme(target)) == HTTP[::-1]
        ):
            raise ValueError(f"{shown(target)!r} is no https URL")
        check_allowed(target)
    except ValueError as error:
        raise RefusedError(f"it redirects: {error}") from None
    return target
