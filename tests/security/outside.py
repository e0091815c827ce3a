"""A root, what lies outside of it, and a watch on what the interpreter opens and executes."""

import contextlib
import functools
import os
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.job_spec import JobSpec, from_json, to_json
from counterpoise.workers.sources.registry import open_source
from tests.tars import write_tar

PLAN = PlanConfig(1, 1, 1, ("tokens",), (None,))
EXECUTING = {
    "os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen", "pickle.find_class",
    "socket.connect",
}  # fmt: skip


class Watch:
    """What the interpreter does while it is on, by its audit events."""

    def __init__(self):
        self.thread = None
        self.opened = []
        self.executed = []
        sys.addaudithook(self._hear)

    def __enter__(self):
        self.opened.clear()
        self.executed.clear()
        self.thread = threading.get_ident()
        return self

    def __exit__(self, *_):
        self.thread = None

    def _hear(self, event, arguments):
        if self.thread != threading.get_ident():
            return
        if event == "open" and isinstance(arguments[0], str | os.PathLike):
            self.opened.append(Path(os.fsdecode(arguments[0])).resolve())
        elif event in EXECUTING:
            self.executed.append((event, arguments))


WATCH = Watch()


@pytest.fixture
def root(tmp_path):
    """A root with a shard, a link that leaves it, and a shard and a secret beside it."""
    open_once()
    folder = tmp_path / "root"
    for name in ("root", "outside"):
        (tmp_path / name).mkdir()
        write_tar(tmp_path / name / "a.tar", {"0.txt": b"hello", "0.cls": b"1"})
    (tmp_path / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "passwd.tar").symlink_to("/etc/passwd")
    return folder


@functools.cache
def open_once():
    """Open some data: modules, and what is installed, are read once in a process."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_tar(root / "a.tar", {"0.txt": b"hello"})
        (root / "a.jsonl").write_text('{"text": "a"}')
        for source in ("tar", "jsonl"):
            open_job(root, source=source, pattern=[f"a.{source}"]).load(0)
        with contextlib.suppress(ValueError):
            open_job(root, pattern=["http://127.0.0.1:1/a.tar"])


def open_job(root, **source):
    """Open the source of a job that a trainer describes, as a worker with this root does."""
    told = {"source": "tar", "pattern": ["a.tar"], "transform": None, **source}
    return open_source(from_json(to_json(JobSpec(PLAN, source=told))).source, root)
