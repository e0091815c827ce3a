"""Small servers for tests of stores: http with chosen faults, and moto's S3."""

import os
import random
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from counterpoise.workers.stores import allowed, files


def begin_anew() -> None:
    """Forget what this process has open: the environment says something else now.

    A test that ran a worker's command in this process has restricted what it reads.
    """
    files._of_process.clear()
    allowed._prefixes = None


class FaultyServer:
    """Files by name over http; `faults` are parts of requests: fail, stall, truncate, reset.

    ranges: whether it answers range requests. redirects: names that lead elsewhere. Each answer is
    kept in `asked`: the name, the range, the status.
    """

    def __init__(
        self, held: Mapping[str, bytes], seed: int = 0, ranges: bool = True, **faults: float
    ) -> None:
        self.held, self.ranges, self.faults = dict(held), ranges, faults
        self.redirects: dict[str, str] = {}
        self.asked: list[tuple[str, str, int]] = []
        self.chance = random.Random(seed)
        self.lock, self.over = threading.Lock(), threading.Event()
        self.running, self.most_running = 0, 0

    def fault(self) -> str:
        """Return the fault of the next answer, by chance."""
        with self.lock:
            left = self.chance.random()
        for name, part in self.faults.items():
            left -= part
            if left < 0:
                return name
        return ""


@contextmanager
def served(held: Mapping[str, bytes], **options) -> Iterator[tuple[str, FaultyServer]]:
    """Serve files; yield the URL of their folder, and the server."""
    about = FaultyServer(held, **options)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            with about.lock:
                about.running += 1
                about.most_running = max(about.most_running, about.running)
            try:
                self.answer()
            except (ConnectionError, BrokenPipeError):
                pass
            finally:
                with about.lock:
                    about.running -= 1

        def answer(self):
            name = self.path.partition("?")[0].lstrip("/")
            fault = about.fault()
            if fault == "stall":
                about.over.wait(30)
                self.close_connection = True
                return
            if fault == "fail":
                self.say(name, 503, b"secret of the server")
            elif name in about.redirects:
                self.say(name, 302, b"", Location=about.redirects[name])
            elif name not in about.held:
                self.say(name, 404, b"")
            else:
                self.part(name, about.held[name], fault)

        def part(self, name, data, fault):
            tag = f'"{blake2b(data, digest_size=8).hexdigest()}"'
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if self.headers.get("If-Match", tag) != tag:
                self.say(name, 412, b"")
            elif asked is None or not about.ranges:
                self.say(name, 200, data, ETag=tag)
            else:
                start, end = int(asked[1]), min(int(asked[2]) + 1, len(data))
                span = f"bytes {start}-{end - 1}/{len(data)}"
                self.say(name, 206, data[start:end], fault, ETag=tag, **{"Content-Range": span})

        def say(self, name, status, body, fault="", **headers):
            about.asked.append((name, self.headers.get("Range", ""), status))
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if fault == "truncate" else body)
            if fault == "truncate":
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    begin_anew()
    try:
        yield f"http://127.0.0.1:{server.server_port}", about
    finally:
        about.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
        begin_anew()


SECRET = "a-very-secret-key"


def s3_environment(url: str) -> dict[str, str]:
    """Return what a client of moto's S3 has in its environment."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "an-access-key-id",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
