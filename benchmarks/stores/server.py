"""A folder as an S3 that is far away: each answer comes late, each connection is slow.

It stands for a server behind a proxy: the same delay and rate for all, and little CPU time, so that
those that are measured have the cores. `python -P -m benchmarks.stores.server FOLDER MS MB_S`
prints its port, and serves s3://BUCKET/KEY from FOLDER/BUCKET/KEY until its input ends.
"""

import asyncio
import re
import sys
import threading
from email.utils import formatdate
from os import _exit
from pathlib import Path
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

PIECE = 1 << 16


class FarStore:
    """A folder, the seconds before each answer, and bytes a second of a connection."""

    def __init__(self, folder: Path, delay_s: float, rate: float) -> None:
        self.folder, self.delay_s, self.rate = folder, delay_s, rate
        self.held: dict[str, bytes] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode("latin-1").split("\r\n")
                method, target, _ = first.split(" ")
                named = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
                await reader.readexactly(int(named.get("content-length", 0)))
                await asyncio.sleep(self.delay_s)
                await self._answer(method, target, named.get("range", ""), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(
        self, method: str, target: str, asked: str, writer: asyncio.StreamWriter
    ) -> None:
        path, _, query = target.partition("?")
        key = unquote(path).strip("/")
        if "/" not in key:
            await self._send(writer, 200, _listing(self.folder / key, parse_qs(query)))
            return
        data = self._read(key)
        if data is None:
            text = b"<Error><Code>NoSuchKey</Code></Error>"
            await self._send(writer, 404, b"" if method == "HEAD" else text)
            return
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", asked)
        about = f'ETag: "{len(data):x}"\r\nLast-Modified: {formatdate(0, usegmt=True)}\r\n'
        if method == "HEAD":
            await self._send(writer, 200, b"", about, len(data))
        elif span:
            start = int(span[1])
            end = min(int(span[2] or len(data)) + 1, len(data))
            about += f"Content-Range: bytes {start}-{end - 1}/{len(data)}\r\n"
            await self._send(writer, 206, memoryview(data)[start:end], about)
        else:
            await self._send(writer, 200, data, about)

    def _read(self, key: str) -> bytes | None:
        path = self.folder / key
        if key not in self.held and path.is_file():
            self.held[key] = path.read_bytes()
        return self.held.get(key)

    async def _send(
        self,
        writer: asyncio.StreamWriter,
        status: int,
        body: bytes | memoryview,
        more: str = "",
        length: int | None = None,
    ) -> None:
        size = len(body) if length is None else length
        head = f"HTTP/1.1 {status} .\r\nContent-Length: {size}\r\n{more}\r\n"
        writer.write(head.encode())
        since = asyncio.get_running_loop().time()
        for at in range(0, len(body), PIECE):
            writer.write(body[at : at + PIECE])
            await writer.drain()
            due = since + min(at + PIECE, len(body)) / self.rate
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
        await writer.drain()


def _listing(bucket: Path, query: dict[str, list[str]]) -> bytes:
    """Return the answer to ListObjectsV2, of all keys that begin with a prefix."""
    prefix = query.get("prefix", [""])[0]
    found = sorted(path for path in bucket.rglob("*") if path.is_file())
    keys = [(str(path.relative_to(bucket)), path.stat().st_size) for path in found]
    entries = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size>"
        f"<ETag>&quot;{size:x}&quot;</ETag>"
        "<LastModified>1970-01-01T00:00:00.000Z</LastModified></Contents>"
        for key, size in keys
        if key.startswith(prefix)
    )
    return (
        "<?xml version='1.0'?><ListBucketResult><IsTruncated>false</IsTruncated>"
        f"<Prefix>{escape(prefix)}</Prefix><KeyCount>1</KeyCount>{entries}</ListBucketResult>"
    ).encode()


async def _main(folder: str, delay_ms: str, mb_s: str) -> None:
    store = FarStore(Path(folder), float(delay_ms) / 1e3, float(mb_s) * 1e6)
    server = await asyncio.start_server(store.serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), _exit(0)), daemon=True).start()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
