"""A worker whose messages a test writes and reads, without a socket, and whose clock stands."""

import json
from collections import deque
from typing import Any

import torch

from counterpoise.balancer.job.messages import JoinPool, OpenJob
from counterpoise.balancer.pool.messages import BATCH, DoPart, PoolBeat
from counterpoise.balancer.protocol.job_spec import JobSpec, to_json
from counterpoise.balancer.run.tasks import Load, Measure
from counterpoise.workers.daemon.job_worker import RemoteWorker, WorkerSetup
from counterpoise.workers.sources.interface import SampleError
from counterpoise.workers.sources.plain import as_source
from tests.workers.daemon.played import STACKED, job_of

TOKEN = 7
HELLO = JoinPool("host/1", 0, "as tests have it", "", b"", 0)


class Numbers:
    """Tensors of their own numbers; loaded: which were asked for."""

    def __init__(self, count: int, bad: frozenset[int] = frozenset()) -> None:
        self.count, self.bad = count, bad
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.loaded.append(index)
        if index in self.bad:
            raise SampleError(str(index), "it is torn")
        return {"x": torch.full((400,), index)}


def tokens_of(sample: Any) -> dict[str, int]:
    return {"tokens": int(sample["x"][0]) % 5 + 1}


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class ScriptedWorker:
    """A worker, and its link: `receive` messages, `say` what it sends and read what it has said."""

    def __init__(self, source: Any = None, **more: Any) -> None:
        self.inbox: deque[Any] = deque()
        self.sent: list[Any] = []
        self.beats: list[Any] = []
        self.frames: list[Any] = []
        self.opened = self.looks = 0
        self.is_quick = False
        self.source = source
        if source is None:
            self.source = as_source(Numbers(30), tokens_of)
        link: Any = self
        self.worker = RemoteWorker(link, WorkerSetup(b"run|w", HELLO, self.open_source, **more))
        self.worker.keep_at_most(1 << 20)

    def open_source(self, _described: Any) -> Any:
        self.opened += 1
        if isinstance(self.source, Exception):
            raise self.source
        return self.source

    # --- the link

    def receive(self) -> Any:
        self.looks += not self.inbox
        return (self.inbox.popleft(), ()) if self.inbox else None

    def send_together(self, messages: Any) -> None:
        for message in messages:
            self.send(message)

    def send(self, message: Any, frames: Any = ()) -> None:
        (self.beats if isinstance(message, PoolBeat) else self.sent).append(message)
        self.frames += frames

    # --- the test

    def hear(self, *messages: Any) -> list[Any]:
        """Have messages come, and all that there is to do done; return what the worker says."""
        self.inbox.extend(messages)
        self.sent.clear()
        end = self.look()
        while end is None and self.worker.has_work:
            self.worker.make_part()
            end = self.look()
        return [*self.sent] if end is None else [*self.sent, end]

    def look(self) -> str | None:
        if not self.is_quick:
            self.worker.now = float("inf")  # messages are looked for however quick a part was
        return self.worker.look()

    def open(self, number: int = 1, layout: Any = None, job: JobSpec | None = None) -> Any:
        return self.hear(opening(number, layout, job))[-1]

    def kept(self) -> list[int]:
        return sorted(self.worker.store._frames)


def opening(
    number: int = 1, layout: dict[str, Any] | None = None, job: JobSpec | None = None
) -> OpenJob:
    layout_json = json.dumps(layout or STACKED)
    return OpenJob(number, to_json(job or job_of()), layout_json, TOKEN, b"", b"password")


def load(number: int, *indexes: int, form: str = BATCH, **more: Any) -> DoPart:
    return DoPart(number, form, tuple(Load(0, indexes, **more).packed()))


def measure(number: int, *indexes: int) -> DoPart:
    return DoPart(number, "costs", tuple(Measure(0, indexes).packed()))
