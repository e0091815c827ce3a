"""What the coordinator does with ranks: the actions of their rows in the table."""

import math

from msgspec import structs

from ..protocol.clock_offset import Offset, bounded
from ..protocol.job_spec import JobSpec, from_json, to_json
from ..protocol.messages import (
    Ack,
    GetStatus,
    PeerRejected,
    Ping,
    Pong,
    RankBye,
    RankHello,
    Ready,
    RequestBatch,
    RunFailed,
    StartRun,
    SubmitTask,
    UnknownPeer,
)
from .peers import NOTHING, RankPeer, remember, why_apart, why_rank_refused
from .run.epoch import EpochRun
from .state import CoordinatorState
from .status_report import overview

# Ranks that begin at different places may be of two launches, the former not known to have gone.
APART_S = 5.0
# Ranks that are not there hold up those that are for so long at most: they may have had all.
HELD_UP_S = 5.0
# A rank that has gone while others begin the next epoch may come back for so long.
MISSING_S = 120.0
ANOTHER = "another process now plays this rank: start all anew"


class RankHandlers(CoordinatorState):
    """Ranks bring the job, begin runs, ask for microbatches and go; see protocol/transitions.py."""

    def _greet_rank(self, peer: bytes, hello: RankHello) -> None:
        """Let a rank in; if others are at another job, see first (by telling) if they are there."""
        known = self._ranks.get(peer)
        if known is not None and known.hello == hello:
            self._tell_ready(peer)
        elif known is not None:
            self._send(peer, PeerRejected("this rank said another hello before: start it anew"))
            self._release_rank(peer, None)
            self._states[peer] = "absent"
        elif self._ranks and not self.fixed_job and hello.job != to_json(self.job or JobSpec()):
            for rank in self._ranks.values():
                self._answer(rank.peer, None)
            self._knocking[peer] = hello
            self._states[peer] = "absent"
        else:
            self._admit(peer, hello)

    def _admit(self, peer: bytes, hello: RankHello) -> None:
        reason = why_rank_refused(self.job, hello, self.plan_with)
        if reason:
            self._send(peer, PeerRejected(reason))
            self._states[peer] = "absent"
            return
        known, mine = self._launches.get(peer, self._launch), set(hello.ranks)
        if any(r.launch > known and mine.intersection(r.hello.ranks) for r in self._ranks.values()):
            self._send(peer, RunFailed("protocol", ANOTHER))
            self._states[peer] = "absent"
            return
        self._end_former_life(hello)
        launch = remember(self._launches, peer, self._launch)
        self._ranks[peer] = RankPeer(peer, hello, told=self._now, launch=launch)
        if self.job is None:
            self._start_job(from_json(hello.job))
        self._tell_ready(peer)

    def _tell_ready(self, peer: bytes) -> None:
        if self._is_ready():
            self._send(peer, Ready(self.count, self.fingerprint))
        if self.trouble is not None:
            self._send(peer, self.trouble)

    def _end_former_life(self, hello: RankHello) -> None:
        """A rank has started anew: the run that it was in is over for all who were in it.

        Where the former life was in a run of a later number, it would count as having left.
        Ranks start anew together and come one by one; those who have come already are of a later
        launch than the one that is replaced, and stay. Who is of which cannot always be told (the
        last words of a rank that is dead may come late), so the others are asked who they are: one
        of the former launch stands elsewhere.
        """
        mine = set(hello.ranks)
        replaced = [r for r in self._ranks.values() if mine.intersection(r.hello.ranks)]
        if not replaced:
            return
        last = max(old.launch for old in replaced)
        self._launch = max(self._launch, last + 1)
        others = [r for r in self._ranks.values() if r.begun is not None and r.launch <= last]
        for old in replaced:
            self._end_rank(old, RunFailed("protocol", ANOTHER))
            remember(self._replaced, old.peer, old.launch)
        for old in others:
            if old not in replaced:
                self._end_rank(old, UnknownPeer())

    def _end_rank(self, old: RankPeer, last: RunFailed | UnknownPeer) -> None:
        """Forget a rank after a last word, and stop the run if it was in one."""
        self._send(old.peer, last)
        self._states.pop(old.peer, None)
        self._drop_rank(old.peer)
        if old.begun is not None:
            self._stop_run()

    def _ask_former_launch(self, rank: RankPeer, begin: StartRun) -> None:
        """Those who seem to be of an earlier launch and stand elsewhere in this run may have gone.

        Ranks that come one by one after quick restarts may be of one launch and be counted to two:
        they are asked, and those who are there come back.
        """
        for old in list(self._ranks.values()):
            if (
                old.launch < rank.launch
                and old.begun is not None
                and old.begun.run == begin.run
                and why_apart([(old, old.begun), (rank, begin)])
            ):
                self._end_rank(old, UnknownPeer())

    def _begin(self, peer: bytes, begin: StartRun) -> None:
        rank = self._ranks[peer]
        if rank.begun is not None and not begin.is_after(rank.begun):
            return
        rank.begun, rank.had = begin, NOTHING
        rank.finished = False
        self._ask_former_launch(rank, begin)
        if self._why_apart():
            self._stop_run()
            self._apart_since = min(self._apart_since, self._now)
        elif self.run is not None and self.run.is_past(begin, rank.hello.ranks):
            self._keep_knowledge(self.run, rank)
            self._stop_run()
        self._heed(rank)
        self._switch_run()

    def _keep_knowledge(self, run: EpochRun, behind: RankPeer) -> None:
        """What the others have had of a run that starts again is not decoded again."""
        steps, holes = run.delivery.known()
        for rank in self._ranks.values():
            if rank is not behind and rank.begun is not None and rank.begun.run == run.number:
                rank.begun = structs.replace(rank.begun, known=steps, holes=holes)
                rank.had = run.delivery.needed(rank.hello.ranks)

    def _look_apart(self) -> None:
        """Fail when ranks stay at different places; tell them something, in case one has gone."""
        reason = self._why_apart()
        if not reason:
            self._apart_since = math.inf
        elif self._now - self._apart_since > APART_S:
            if self.trouble is None:
                self._fail("protocol", reason)
        else:
            for rank in self._ranks.values():
                if self._now - rank.told > 1.0:
                    self._answer(rank.peer, None)

    def _look_missing(self) -> None:
        """Fail when ranks that others wait for have gone and stay away."""
        missing = self._missing()
        if not missing:
            self._missing_since = math.inf
            return
        self._missing_since = min(self._missing_since, self._now)
        if self._now - self._missing_since > MISSING_S and self.trouble is None:
            self._fail(
                "protocol",
                f"ranks {missing} have gone, and the others have waited {MISSING_S:.0f} s for them "
                "to begin the next epoch: let all ranks run the same epochs, or start all anew",
            )

    def _missing(self) -> tuple[int, ...]:
        """Return the ranks that are not there while others have begun a later run."""
        run, present = self.run, self._ranks.values()
        if run is None or not any(r.begun and r.begun.run > run.number for r in present):
            return ()
        return self._absent(run)

    def _absent(self, run: EpochRun) -> tuple[int, ...]:
        there = {number for rank in self._ranks.values() for number in rank.hello.ranks}
        return tuple(sorted(set(range(run.job.ranks)) - there))

    def _look_held_up(self) -> None:
        """Plan on without ranks that are not there, if others wait for what is not planned yet.

        One that had the rest of its epoch from a balancer that died, or that left before this run
        began again, does not come; one that does come starts the run again.
        """
        run = self.run
        if run is None or run.feed is None or not (absent := self._absent(run)):
            return
        waits = self._asks.first_of(run.number).values()
        if any(a.step >= run.feed.step and self._now - since > HELD_UP_S for a, since in waits):
            run.delivery.leave(absent)
            run.end_useless_leases()

    def _take_offer(self, _: bytes, offer: SubmitTask) -> None:
        if self.run is not None and self.run.number == offer.run:
            self.run.offer(offer)

    def _note_ask(self, peer: bytes, ask: RequestBatch) -> None:
        """Note what a rank waits for; if it asks in a run that it has not begun, that was lost."""
        rank = self._ranks[peer]
        if ask.rank in rank.hello.ranks:
            self._asks.note(peer, ask, self._now)
            if rank.begun is not None and ask.run > rank.begun.run:
                self._send(peer, UnknownPeer())

    def _ask_who(self, peer: bytes, _: RequestBatch) -> None:
        """Somebody asks whom we do not know (any more): let it say again who and where it is."""
        if peer in self._replaced:
            self._send(peer, RunFailed("protocol", ANOTHER))
        else:
            self._send(peer, UnknownPeer())

    def _free(self, peer: bytes, ack: Ack) -> None:
        mine = ack.rank in self._ranks[peer].hello.ranks
        if mine and self.run is not None and self.run.number == ack.run:
            self.run.taken(ack.rank, ack.step, ack.microbatch)

    def _answer(self, peer: bytes, ping: Ping | None) -> None:
        rank = self._ranks.get(peer)
        if rank is not None and ping is not None:
            rank.pinged = self._now
            rank.clock = Offset(bounded(ping.ahead_us), bounded(ping.error_us))
        ready = sum(self._states.get(peer) == "worker ready" for peer in self._workers)
        held = self.run.delivery.held_bytes if self.run else 0
        number, clock_us = ping.number if ping else 0, self.books.clock_us(self._now)
        self._send(peer, Pong(ready, held, self._waiting(), number, clock_us))
        if self.trouble is not None and peer in self._ranks:
            self._finish(peer, self.trouble)

    def _give_overview(self, peer: bytes, question: GetStatus) -> None:
        self._send(peer, overview(self, question.number, self._waiting()))

    def _waiting(self) -> str:
        """Say in a few words what the ranks wait for."""
        if not self._workers:
            return "a worker to connect"
        if missing := self._missing():
            return f"ranks {missing}, which have gone"
        if self.job is None:
            return "a trainer to bring a job"
        if self.run is not None:
            return self.run.waiting()
        return "ranks to begin" if self._is_ready() else "a worker to open the data"

    def _release_rank(self, peer: bytes, bye: RankBye | None) -> None:
        rank = self._ranks.get(peer)
        self._drop_rank(peer)
        if bye is None and rank is not None and rank.begun is not None:
            self._launch = max(self._launch, rank.launch + 1)
        if bye is not None:
            if self.run is not None and rank is not None:
                self.run.delivery.leave(rank.hello.ranks)
                self.run.end_useless_leases()
            self._leaving.add(peer)
        if not self._ranks:
            self._end_job()
        else:
            self._switch_run()
