"""Connects a trainer to its balancer: a socket driven by a rank session.

Nothing runs in the background but ZeroMQ's own threads, which need no Python: messages that were
asked for ahead arrive while the trainer computes.
"""

import contextlib
import logging
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from msgspec import structs

from ...balancer.protocol.job_spec import from_json
from ...balancer.protocol.messages import Message, Ping, RankBye
from ...balancer.protocol.parts import Ready
from ...balancer.protocol.payload_messages import Batch
from ...balancer.protocol.rank_session import Arrival, RankSession
from ...balancer.protocol.status_messages import MICROSECONDS
from ...balancer.protocol.trace_messages import StartTrace
from ...balancer.run.arrivals import RunStart
from ...balancer.transport.keys import PeerKeys
from ...balancer.transport.naming import DEFAULT_JOB, peer_name
from ...workers.codec.fields import why_bad_layout
from ..step.errors import LoaderError
from ..step.waiting import WaitLog
from .pull_tracker import PullTracker
from .puller import Puller
from .rank_sockets import PATIENCE_S, RankSockets
from .rank_trace import RankTrace
from .rendezvous import Rendezvous

logger = logging.getLogger(__name__)

# Pause between pings while waiting, and the silence after which a balancer on this host is dead.
PING_S = 1.0
LOCAL_PATIENCE_S = 30.0
# After this silence its address is looked for again.
FIND_S = 2.0
# Between microbatches that are here, messages are looked for this often.
LOOK_S = 0.001
# A balancer that is silent this long may have lost this connection: another one is opened.
RECONNECT_S = 20.0
LOG_CLOSE_S = 3.0
_LAST_WORDS_MS = 500
_WAITS_FOR_OTHERS = "waits up to %.0f s for other processes, which still need its balancer"


@dataclass(frozen=True, slots=True)
class Party:
    """A trainer process: its ranks, its number among those that share them, its name, its job."""

    ranks: tuple[int, ...]
    sharer: int = 0
    name: str = ""
    job: str = DEFAULT_JOB


class Connection:
    """A rank's connection to a balancer; not safe to share between threads or processes."""

    def __init__(
        self,
        endpoint: str,
        party: Party,
        job: str,
        prefetch: int,
        watch: Callable[[], str] = lambda: "",
        peers: Rendezvous | None = None,
        patience_s: float = 0.0,
        keys: PeerKeys | None = None,
    ) -> None:
        """Make a connection that is opened at first use.

        `watch` returns why the local processes have failed, empty if they have not; it is asked
        when one of the watched descriptors (see RankSockets) is readable and at every ping; they
        live until this connection has left. `peers` are the processes that share the balancer:
        asked at every ping why those that this one waits for cannot come, and told why it cannot
        go on. At the end the balancer is given at most `patience_s` to say that no other rank needs
        it. With `keys` the balancer must be the one that they name.
        """
        self.endpoint = endpoint
        self.session = _session(party, job, prefetch)
        self._name = party.name or f"rank {party.ranks[0]}"
        self._watch = watch
        self._peers = peers
        self._patience_s = LOCAL_PATIENCE_S if endpoint.startswith("ipc://") else PATIENCE_S
        name = peer_name(party.job, f"rank-{party.ranks[0]}.{os.getpid()}")
        self._sockets = RankSockets(endpoint, name, self.session, keys)
        self._sockets.patience_s = patience_s
        # What workers of this machine send is not doubted: they are the trainer's own processes.
        checks = _any_layout if endpoint.startswith("ipc://") else why_bad_layout
        self._puller = Puller(self._sockets, PullTracker(checks))
        self._told = set[int]()  # workers of which it is logged that they cannot be reached
        self._is_draining = False
        self._awaits_restart = False
        self._is_first = True  # nothing of the run has been handed out yet
        self._pings = 0
        self._trace = RankTrace()
        self._heard = self._looked = time.monotonic()
        self._leave = weakref.finalize(self, _close, self._sockets, watch)

    @property
    def left_out(self) -> int:
        """The number of samples that were in no step of the run that has ended."""
        return self.session.left_out

    def wait_ready(self, timeout_s: float | None = None) -> Ready:
        """Wait until the job runs; return the number of samples.

        Raises LoaderError, and TimeoutError after `timeout_s`.
        """
        self._sockets.refuse_forked_copy()
        if self.session.ready is None:
            with self._sockets.lock:
                self._wait(lambda: self.session.ready is not None, timeout_s)
        ready = self.session.ready
        if ready is None:
            self._fail("the job did not start")
        return ready

    def begin(self, start: RunStart) -> None:
        """Start the next run."""
        self._sockets.refuse_forked_copy()
        self._is_first = True
        with self._sockets.lock:
            self._prepare_run()
            self._send(self.session.begin(*start))
            self._send(self.session.new_requests())
            self._await_start()

    def go_on(self, start: RunStart) -> None:
        """Start the next run as `begin` does, with the workers of this one.

        Repeated after an exception it starts no other one: all processes must be in the same run.
        """
        self._sockets.refuse_forked_copy()
        with self._sockets.lock:
            if not self.session.has_begun(start.epoch, start.at, start.costs):
                self._send(self.session.begin(*start))
            self._send(self.session.new_requests())

    def finish(self) -> None:
        """Release what only the run needed: its iterator is at its end, or was dropped."""

    def _prepare_run(self) -> None:
        """Do what a run needs before it begins."""

    def _await_start(self) -> None:
        """Wait for what was started for the run, once it has been sent for."""

    def next(self, timeout_s: float | None = None) -> Arrival | None:
        """Return the next microbatch in order, the same until it is released; None at the end.

        Raises LoaderError when the run cannot go on, TimeoutError after `timeout_s`.
        """
        self._sockets.refuse_forked_copy()
        asked = time.monotonic()
        with self._sockets.lock:
            has_next = self._has_next()
            # `_wait` receives, too, but may pause before or give up.
            is_open = self._is_draining or bool(self.session.failure)
            # Of what is here to look for messages costs a good part: others can wait a moment.
            is_due = not has_next or time.monotonic() > self._looked + LOOK_S
            if is_open or (is_due and (has_next or timeout_s is not None)):
                self._drain()
                has_next = self._has_next()
            while True:
                if not has_next:
                    self._wait(self._has_next, timeout_s)
                arrival = self.session.peek()
                readable = arrival and self._puller.with_payloads(arrival)
                if readable and self._trace.until is not None:
                    self._trace.ready(readable.batch, asked)
                if readable is not None or arrival is None:
                    if not (
                        has_next or self._is_first
                    ):  # the wait for the first is the run's start
                        self.session.waited_ms += 1000 * (time.monotonic() - asked)
                    return readable
                self._send(self.session.lose(arrival))
                has_next = False

    def release(self, arrival: Arrival) -> None:
        """Go on to the microbatches after this one; does nothing the second time.

        It is acknowledged, and others are asked for, now or together with those after it.
        """
        self._sockets.refuse_forked_copy()
        with self._sockets.lock:
            if self._trace.until is not None:
                self._trace.released(arrival.batch)
            messages = self.session.release(arrival)
            self._is_first = False
            if messages:
                self._send(messages)

    def add_up_labels(
        self, step: int, tokens: Mapping[int, int], timeout_s: float | None = None, /
    ) -> int:
        """Send the label tokens of a step's batches, by rank; wait for the total of all ranks."""
        self._sockets.refuse_forked_copy()
        with self._sockets.lock:
            self._drain()
            if self.session.label_total(step) is None:
                self._send(self.session.count_labels(step, tokens))
                self._wait(lambda: self.session.label_total(step) is not None, timeout_s)
            total = self.session.label_total(step)
        if total is None:
            self._fail("the label tokens of all ranks did not come")
        return total

    def recover(self, start: RunStart) -> None:
        """Do nothing: what was interrupted is found out by `_drain`, and asked for again."""

    def close(self) -> None:
        """Leave the balancer and close the socket; wait if the balancer serves other ranks."""
        self._leave()
        self._puller.close()

    def _has_next(self) -> bool:
        """Return whether the next microbatch is here with its payloads, or will never be."""
        arrival = self.session.peek()
        if arrival is None:
            return self.session.at_end()
        return self._puller.tracker.is_settled(arrival.batch)

    def _wait(self, done: Callable[[], bool], timeout_s: float | None) -> None:
        started = self._heard = time.monotonic()
        log = WaitLog(self._is_first)
        # What is untold may be what the balancer waits for.
        self._send(self.session.new_requests())
        while not done():
            waited = time.monotonic() - started
            if timeout_s is not None and waited > timeout_s:
                what = self._waits_for()
                raise TimeoutError(f"no batch within {timeout_s:g} s: waits for {what}")
            left = PING_S if timeout_s is None else min(PING_S, timeout_s - waited + 0.001)
            ready = self._sockets.link().poller.poll(int(1000 * left) + 1)
            if ready:
                self._drain()
                if any(each in self._sockets.watched for each, _ in ready):
                    self._check_processes()
                self._send(self.session.new_requests())
            else:
                # First: what the balancer has said last tells more than that it has ended, and what
                # was asked of workers may have taken too long.
                self._drain()
                self._check_silence()
                self._send(self.session.unanswered())
            if log.is_due(waited):
                logger.warning(
                    "%s has waited %.0f s for %s; still missing: %s",
                    self._name, waited, log.what, self._waits_for(),
                )  # fmt: skip

    def _waits_for(self) -> str:
        """Return in a few words what is missing for the next batch."""
        if pulls := self._puller.waits_for():
            return pulls
        if self.session.status is None:
            return f"the balancer at {self.endpoint} to answer"
        return self.session.status.waiting

    def _drain(self) -> None:
        """Handle what has arrived; whole messages only, however the last call ended."""
        if self._is_draining:
            # A signal's handler has raised in it: a message may be half read, and one not handled.
            self._sockets.drop()
        self._is_draining = True
        self._looked = time.monotonic()
        link = self._sockets.link()
        while (received := link.receive()) is not None:
            self._heard = time.monotonic()
            if isinstance(received[0], StartTrace):
                link.send(self._trace.begin(received[0]))
                continue
            if self._trace.until is not None and isinstance(received[0], Batch):
                self._trace.arrived(received[0])
            self.session.handle(*received)
        if (spans := self._trace.take(time.monotonic())) is not None:
            link.send(spans)
        self._pull()
        self._is_draining = False
        if self.session.awaits_restart and not self._awaits_restart:
            logger.warning(
                "%s: the balancer at %s was stopped; waits up to %.0f s for it to be started again",
                self._name, self.endpoint, self._patience_s,
            )  # fmt: skip
        while self.session.notices:
            logger.warning("%s: %s", self._name, self.session.notices.pop(0))
        self._awaits_restart = self.session.awaits_restart
        if self.session.failure:
            if self._peers is not None:
                # One that has not joined the run yet may find no balancer to tell it. Its store
                # may be gone as well, which is no reason to hide this one.
                with contextlib.suppress(RuntimeError):
                    self._peers.give_up(self.session.failure, "go on")
            self._fail(self.session.failure)

    def _pull(self) -> None:
        """Pull what workers have of microbatches that have arrived."""
        for failed in self._puller.turn(self.session.batches()):
            if not failed.is_rubbish and failed.token not in self._told:
                self._told.add(failed.token)
                logger.warning(
                    "%s gets samples of the worker at %s through the balancer: it cannot pull them",
                    self._name, failed.reason,
                )  # fmt: skip
            self._send([failed])

    def _check_processes(self) -> None:
        reason = self._watch()
        if reason:
            self._sockets.give_up(_LAST_WORDS_MS)  # the balancer may be the one that has ended
            self._fail(reason)

    def _check_silence(self) -> None:
        self._check_processes()
        if self._peers is not None and (reason := self._peers.why_apart()):
            self._sockets.give_up()
            self._fail(reason)
        link = self._sockets.link()
        refusal = link.handshakes.rejection_reason()
        if refusal:
            self._fail(f"{self.endpoint}: {refusal}")
        silent = time.monotonic() - self._heard
        is_stale = silent > RECONNECT_S and self._sockets.age_s > RECONNECT_S
        if is_stale or (silent > FIND_S and self._sockets.has_moved()):
            self._sockets.drop()
        if silent > self._patience_s:
            self._sockets.give_up()
            self._fail(f"the balancer at {self.endpoint} {self._why_silent(silent)}")

    def _why_silent(self, silent_s: float) -> str:
        if self.session.awaits_restart:
            return (
                f"was stopped, and has not been started again for {silent_s:.0f} s: start it, and "
                "then the trainer"
            )
        return f"has not answered for {silent_s:.0f} s: is it running, and is the address right?"

    def _send(self, messages: Sequence[Message]) -> None:
        link = self._sockets.link()
        for message in messages:
            link.send(self._timed(message) if isinstance(message, Ping) else message)

    def _ping(self) -> int:
        """Send a ping; return its number."""
        ping = self._timed(Ping())
        self._sockets.link().send(ping)
        return ping.number

    def _await_pong(self, number: int) -> None:
        """Wait until the balancer has answered a ping, or one after it: it has read all before."""
        self._wait(lambda: self.session.answered >= number, None)

    def _timed(self, ping: Ping) -> Ping:
        """Return a ping with a number of its own and this machine's wall clock."""
        self._pings += 1
        clock_us = round(time.time() * MICROSECONDS)
        return structs.replace(ping, number=self._pings, clock_us=clock_us)

    def _fail(self, reason: str) -> NoReturn:
        raise LoaderError(reason)


def _any_layout(_: bytes, __: object) -> str:
    return ""


def _session(party: Party, job: str, prefetch: int) -> RankSession:
    spec, ranks = from_json(job), party.ranks
    return RankSession(ranks, job, prefetch, spec.microbatches, party.sharer, party.name)


def _close(sockets: RankSockets, watch: Callable[[], str]) -> None:
    """Leave the balancer and wait for its answer if others need us; no-op in a forked copy."""
    if os.getpid() != sockets.owner or not (sockets.is_open or sockets.patience_s):
        return
    link = sockets.link()
    link.send(RankBye())
    started, log_at = time.monotonic(), LOG_CLOSE_S
    while not sockets.session.left and (waited := time.monotonic() - started) < sockets.patience_s:
        if waited > log_at:
            log_at = sockets.patience_s
            logger.warning(_WAITS_FOR_OTHERS, sockets.patience_s - waited)
        link.poller.poll(int(1000 * (min(log_at, sockets.patience_s) - waited)) + 1)
        if watch():
            break
        while (received := link.receive()) is not None:
            sockets.session.handle(*received)
    sockets.suspend()
