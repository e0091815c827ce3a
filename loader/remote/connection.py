"""A trainer's connection to a balancer elsewhere: a socket driven by a trainer session.

Nothing runs in the background but ZeroMQ's own threads, which need no Python: messages that were
asked for ahead arrive while the trainer computes.
"""

import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import NoReturn

from ...balancer.parties.incoming import IncomingBatch
from ...balancer.parties.trainer_session import TrainerSession
from ...balancer.protocol.job_spec import to_json
from ...balancer.run.tasks import LocalArrival, RunStart
from ...balancer.transport.keys import PeerKeys
from ...balancer.transport.naming import peer_name
from ..balanced.source import BatchWait, MicrobatchSource
from ..step.errors import ComesAgainError, LoaderError
from ..step.ranks import Place
from .batch_reader import BatchReader, PulledArrival
from .inbox import Inbox
from .puller import PiecePuller
from .rank_sockets import PATIENCE_S, RankSockets

logger = logging.getLogger(__name__)

BEAT_S = 1.0  # between signs of life
# Between microbatches that are here, messages are looked for this often; where nothing comes for so
# long, what half of the credit has not yet asked for is asked for.
LOOK_S, PAUSE_MS = 0.001, 2
# After this silence of a balancer its address is looked for again; it may have lost this
# connection, too: another one is opened.
FIND_S, RECONNECT_S = 2.0, 20.0
# The balancer of this host may be the process that has ended: what is told to it waits so long.
_LAST_WORDS_MS = 500
# Greater than that of a process before with the same name and number, as in a container.
STARTED_NS = time.time_ns()


class TrainerConnection(MicrobatchSource):
    """A trainer's connection. Not safe to share between processes."""

    def __init__(
        self, endpoint: str, place: Place, reader: BatchReader, prefetch: int, name: str,
        job_name: str, keys: PeerKeys | None = None, patience_s: float = 0.0,
        watch: Callable[[], str] = lambda: "",
    ) -> None:  # fmt: skip
        """Make a connection that is opened at first use.

        `prefetch` microbatches of each rank are under way. At the end the balancer is given at most
        `patience_s` to say that no other process needs it. With `keys` it must be the one that they
        name. `watch` returns why processes that this one has started have failed, "" if they have
        not: asked when a watched descriptor (see RankSockets) is readable, and in silence.
        """
        self.endpoint, self._name, self._reader, self._watch = endpoint, name, reader, watch
        self.session = TrainerSession(
            place.played, to_json(reader.job), reader.layout, max(1, prefetch), place.sharer,
            place.sharers, STARTED_NS, name,
        )  # fmt: skip
        self._inbox = Inbox(self.session, reader, name)
        peer = peer_name(job_name, f"rank-{place.played[0]}.{os.getpid()}")
        self._sockets = RankSockets(endpoint, peer, self._inbox, keys)
        self._sockets.patience_s = patience_s
        self._puller = PiecePuller(self._sockets, self._inbox)
        self._is_draining = False
        self._is_first = True  # nothing of the run has been handed out yet
        self._has_failed = False  # and its error was raised
        self._arrival: tuple[IncomingBatch, LocalArrival] | None = None
        self._heard = self._looked = self._beat_at = time.monotonic()
        self._leave = weakref.finalize(self, _close, self._sockets, self._inbox, watch)

    @property
    def left_out(self) -> int:
        """The number of samples that were in no step of the run that has ended."""
        return self.session.left_out

    def count(self, timeout_s: float | None = None) -> int:
        """Return the number of samples, once the job runs; LoaderError, and TimeoutError."""
        if self.session.ready is None:
            with self._lock():
                self._wait(lambda: self.session.ready is not None, timeout_s)
        ready = self.session.ready
        assert ready is not None
        return ready.count

    def begin(self, start: RunStart) -> None:
        """Start the next run."""
        with self._lock():
            self._is_first, self._inbox.epoch = True, start.epoch
            self.session.begin(start)
            self._send()

    def go_on(self, start: RunStart) -> None:
        """Start the next run, but no other one when it is repeated: all must be in the same."""
        if not self.session.has_begun(start):
            self.begin(start)

    def recover(self, start: Callable[[], RunStart]) -> None:
        """Begin again at a position after an error of the run; what was torn `_drain` mends."""
        if self._has_failed or self.session.run < 0:
            self.begin(start())

    def next(self, timeout_s: float | None = None) -> LocalArrival | None:
        """Return the next microbatch; see MicrobatchSource."""
        session, asked = self.session, time.monotonic()
        with self._lock():
            # Of what is here to look for messages costs a good part: others can wait a moment.
            if self._is_draining or asked > self._looked + LOOK_S:
                self._drain()
            if not self._has_next():
                self._wait(self._has_next, timeout_s)
                if not self._is_first:  # the wait for the first is the run's start
                    session.waited_ms += 1000 * (time.monotonic() - asked)
            if (incoming := session.peek()) is None:
                return None
            if self._arrival is None or self._arrival[0] is not incoming:
                facts, epoch = incoming.give.facts, self._inbox.epoch
                self._arrival = incoming, PulledArrival(facts, incoming, self._reader, epoch)
            if self._inbox.trace.until is not None:
                self._inbox.trace.ready(incoming.give, asked)
            return self._arrival[1]

    def release(self, arrival: LocalArrival) -> None:
        """Go on to the microbatches after this one; does nothing the second time."""
        with self._lock():
            if self._arrival is not None and self._arrival[1].batch is arrival.batch:
                if self._inbox.trace.until is not None:
                    self._inbox.trace.released(self._arrival[0].give)
                self.session.release(self._arrival[0])
                self._arrival = None
            self._is_first = False
            self._send()

    def add_up_labels(
        self, step: int, tokens: Mapping[int, int], timeout_s: float | None = None
    ) -> int:
        """Send the label tokens of a step's batches, by rank; wait for the total of all ranks."""
        with self._lock():
            if self.session.label_sum(step) is None:
                self.session.count_labels(step, tokens)
                self._wait(lambda: self.session.label_sum(step) is not None, timeout_s)
        total = self.session.label_sum(step)
        assert total is not None
        return total

    def close(self) -> None:
        """Leave the balancer and close the sockets; wait if the balancer serves other processes."""
        self._leave()

    # --- parts

    def _lock(self) -> threading.RLock:
        """Return what is held while the sockets are used."""
        self._sockets.refuse_forked_copy()
        return self._sockets.lock

    def _has_next(self) -> bool:
        """Return whether the next microbatch is here, or will never be."""
        return self.session.peek() is not None or self.session.is_at_end

    def _send(self, waits: bool = False) -> None:
        """Send what there is, and once a second a sign of life; waits: as in TrainerSession."""
        link, now = self._sockets.link(), time.monotonic()
        messages = self._inbox.take_messages(waits)
        if now > self._beat_at + BEAT_S:
            messages += self.session.beat(waits)
            self._beat_at = now
        link.send_together(messages)

    def _drain(self, waits: bool = False) -> None:
        """Handle what has arrived; whole messages only, however the last call ended."""
        if self._is_draining:
            # A signal's handler has raised in it: a message may be half read, and one not handled.
            self._sockets.drop()
        self._is_draining = True
        self._looked = time.monotonic()
        link, was_stopped = self._sockets.link(), self._inbox.awaits_restart
        has_stopped = False  # another may have answered since
        while (received := link.receive()) is not None:
            self._heard = self._looked
            self._inbox.handle(*received)
            has_stopped |= self._inbox.awaits_restart
        self._puller.turn()
        self._send(waits)
        self._is_draining = False
        if has_stopped and not was_stopped:
            logger.warning(
                "%s: the balancer at %s was stopped; waits up to %.0f s for it to be started again",
                self._name, self.endpoint, PATIENCE_S,
            )  # fmt: skip

    def _wait(self, done: Callable[[], bool], timeout_s: float | None) -> None:
        started = self._heard = time.monotonic()
        log = BatchWait(self._is_first, self._name)
        limit_s = math.inf if timeout_s is None else timeout_s
        self._drain()
        while not done():
            if self.session.failure:
                self._has_failed = True
                self._fail(self.session.failure)
            waited = time.monotonic() - started
            log.check(waited, limit_s, self._describe_wait())
            left_s = min(BEAT_S, limit_s - waited + 0.001)
            ready = self._sockets.link().poller.poll(PAUSE_MS)
            if not ready:  # of what was asked for all may be here
                self._send(waits=True)
                ready = self._sockets.link().poller.poll(int(1000 * left_s) + 1)
            # First: what the balancer has said last tells more than that it has ended.
            self._drain(waits=not ready)
            if any(source in self._sockets.watched for source, _ in ready):
                self._check_processes()
            if not ready:
                self._check_silence()

    def _describe_wait(self) -> str:
        """Return in a few words what is missing for the next batch."""
        asked = self.session.waiting or f"the balancer at {self.endpoint} to answer"
        return self._puller.describe_wait() or asked

    def _check_processes(self) -> None:
        if reason := self._watch():
            self._sockets.give_up(_LAST_WORDS_MS)  # the balancer may be the one that has ended
            self._fail(reason)

    def _check_silence(self) -> None:
        self._check_processes()
        if refusal := self._sockets.link().handshakes.rejection_reason():
            self._fail(f"{self.endpoint}: {refusal}")
        silent = time.monotonic() - self._heard
        is_stale = silent > RECONNECT_S and self._sockets.age_s > RECONNECT_S
        if is_stale or (silent > FIND_S and self._sockets.has_moved()):
            self._sockets.drop(is_gone=True)
        if silent > PATIENCE_S:
            self._sockets.give_up()
            problem, advice = "has not answered for", "is it running, and is the address right?"
            if self._inbox.awaits_restart:
                problem = "was stopped, and has not been started again for"
                advice = "start it, and then the trainer"
            self._fail(f"the balancer at {self.endpoint} {problem} {silent:.0f} s: {advice}")

    def _fail(self, reason: str) -> NoReturn:
        raise (ComesAgainError if self.session.comes_again else LoaderError)(reason)


def _close(sockets: RankSockets, inbox: Inbox, watch: Callable[[], str]) -> None:
    """Leave the balancer and wait for its answer if others need us; no-op in a forked copy."""
    if os.getpid() != sockets.owner or not (sockets.is_open or sockets.patience_s):
        return
    link, until = sockets.link(), time.monotonic() + sockets.patience_s
    inbox.session.leave()
    for message in inbox.take_messages():
        link.send(message)
    while not inbox.left and (left_s := until - time.monotonic()) > 0:
        link.poller.poll(int(1000 * left_s) + 1)
        if watch():
            break
        while (received := link.receive()) is not None:
            inbox.handle(*received)
    sockets.suspend()
