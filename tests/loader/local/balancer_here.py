"""Plays a balancer, a worker and a trainer in this process: what local loops are compared with.

They are the same as elsewhere, joined by function calls: parts are made while the caller waits.
"""

import json
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import numpy as np

from counterpoise.balancer.job.job import PlayedJob
from counterpoise.balancer.job.messages import JobOpened, JoinPool, OpenJob, WorkersAt
from counterpoise.balancer.parties.trainer_session import TrainerSession
from counterpoise.balancer.pool.worker_session import PoolSession
from counterpoise.balancer.protocol.job_spec import to_json
from counterpoise.balancer.run.tasks import LocalArrival, RunStart
from counterpoise.loader.balanced.source import MicrobatchSource
from counterpoise.loader.remote.batch_reader import BatchReader, PulledArrival
from counterpoise.loader.step.errors import ComesAgainError, LoaderError
from counterpoise.loader.step.ranks import Place
from counterpoise.workers.collate.described import read_layout
from counterpoise.workers.collate.labels import count_batch_label_tokens
from counterpoise.workers.planned.parts import do_part
from counterpoise.workers.planned.reader import PlannedReader
from counterpoise.workers.sources.interface import Source

_WORKER, _TRAINER = b"worker", b"trainer"
TURN_S = 0.06  # more than between two looks of a job


class PlayedHere(MicrobatchSource):
    """A MicrobatchSource without sockets and processes."""

    def __init__(self, source: Source, place: Place, reader: BatchReader, credit: int = 2) -> None:
        self._source, self._place, self._reader = source, place, reader
        self._credit = credit
        self._is_torn = self._is_open = self._has_failed = False

    def _open(self) -> None:
        if not self._is_open:
            self._connect()
            self._is_open = True

    def _connect(self) -> None:
        job, layout = self._reader.job, self._reader.layout
        self.session = TrainerSession(self._place.played, to_json(job), layout, self._credit)
        try:
            self._job = PlayedJob(to_json(job), layout, 1)
        except ValueError as error:  # its server would refuse it
            raise LoaderError(str(error)) from None
        self._job.player._is_large = False  # no thread plans: turns would not wait for it
        self._worker = PoolSession()
        self._kept: dict[int, list[Any]] = {}
        self._serials = count(1)
        self._now = 0.0
        source, described = self._source, json.loads(layout)
        self._tasks = PlannedReader(
            source, source, job.resources, job.plan.seed, read_layout(described) or list,
            job.on_error == "skip", described["takes_empty"], shift_labels=job.shift_labels,
            count_labels=count_batch_label_tokens if job.counts_batches else None,
        )  # fmt: skip
        hello = JoinPool("worker", 0, "", "", b"", 1 << 40)
        self._job.receive(_WORKER, hello, (), 0.0)
        self._turn()

    @property
    def left_out(self) -> int:
        return self.session.left_out

    def count(self, timeout_s: float | None = None) -> int:  # noqa: ARG002
        self._open()
        while (ready := self.session.ready) is None:
            self._turn()
        return ready.count

    def begin(self, start: RunStart) -> None:
        self._open()
        if self._is_torn:
            self._connect()
        self._is_torn = self._has_failed = False
        self._epoch = start.epoch
        self.session.begin(start)

    def recover(self, start: Callable[[], RunStart]) -> None:
        if self._is_torn or self._has_failed:
            self.begin(start())

    def next(self, timeout_s: float | None = None) -> LocalArrival | None:  # noqa: ARG002
        self._is_torn = True
        turns = 0
        while (incoming := self.session.peek()) is None and not self.session.is_at_end:
            if self.session.failure:
                self._is_torn, self._has_failed = False, True
                kind = ComesAgainError if self.session.comes_again else LoaderError
                raise kind(self.session.failure)
            self._turn()
            assert (turns := turns + 1) < 20_000, "no batch comes"
        self._is_torn = False
        if incoming is None:
            return None
        return PulledArrival(incoming.give.facts, incoming, self._reader, self._epoch)

    def release(self, arrival: LocalArrival) -> None:
        incoming = self.session.peek()
        if incoming is not None and incoming.give.facts == arrival.batch:
            self.session.release(incoming)

    def add_up_labels(
        self,
        step: int,
        tokens: Mapping[int, int],
        timeout_s: float | None = None,  # noqa: ARG002
    ) -> int:
        if self.session.label_sum(step) is None:
            self.session.count_labels(step, tokens)
        while (total := self.session.label_sum(step)) is None:
            self._turn()
        return total

    def close(self) -> None:
        """Leave, and see that nothing is kept any more."""
        if self._is_open and not self._is_torn:
            self.session.leave()
            for _ in range(3):
                self._turn()
            assert not self._kept

    def _opened(self, number: int) -> JobOpened:
        source = self._source
        columns = source.known_costs(self._reader.job.resources) or ()
        return JobOpened(
            number, len(source), source.fingerprint(),
            tuple(np.asarray(column, np.int64).tobytes() for column in columns),
            source.decode_first, source.names_samples,
        )  # fmt: skip

    def _turn(self) -> None:
        """Let all parties do what there is to do, and the worker one part."""
        self._now += TURN_S
        session, job = self.session, self._job
        messages = session.take_messages(waits=True) or session.beat()
        for message in messages:
            job.receive(_TRAINER, message, (), self._now)
        part = self._worker.next_part()
        if part is not None:
            serial = next(self._serials)
            answer, frames = do_part(self._tasks, part, serial)
            if frames:
                self._kept[serial] = frames
            self._worker.finish(answer)
        for told in [*self._worker.take_messages(), self._worker.beat()]:
            job.receive(_WORKER, told, (), self._now)
        for sent in job.turn(self._now):
            told_now: Any = sent.message
            if isinstance(told_now, OpenJob):
                job.receive(_WORKER, self._opened(told_now.number), (), self._now)
            elif sent.peer == _WORKER:
                self._worker.take(told_now)
            elif not isinstance(told_now, WorkersAt):
                session.receive(told_now)
        while self._worker.freed:
            self._kept.pop(self._worker.freed.pop(), None)
        for pull in session.take_pulls():
            lacking = session.lacks(pull.rank, pull.index, pull.version)
            kept = self._kept.get(pull.piece.serial)
            assert lacking is not None
            assert kept is not None
            copied = [bytearray(memoryview(frame).cast("B")) for frame in kept]
            piece = self._reader.read(lacking.give, pull.number, copied, self._epoch)
            session.note_pulled(pull.rank, pull.index, pull.version, pull.number, piece)
