"""Planted bugs: mistakes that one could make in the coordinator or in a session.

test_mutants.py plants them one by one and expects the simulated trials to notice each.
"""

from counterpoise.balancer.protocol.transitions import (
    COORDINATOR,
    Event,
    Outcome,
    Transition,
)
from tests.balancer.coordinator.planting import Mutant, Plant, constant, edit, row


def mutant(what: str, *plants: Plant, seed: int) -> Mutant:
    """Return a planted bug; `seed` is one that shows it."""
    return Mutant(what, plants, seed)


MUTANTS = (
    # --- fencing, and results that come twice
    mutant(
        "an older incarnation is let in",
        edit("coordinator.worker_handlers:WorkerHandlers.register_worker",
             "any(old.hello.incarnation > hello.incarnation for old in same_name)", "False"),
        seed=249,
    ),
    mutant(
        "an older incarnation keeps its leases",
        row("protocol.transitions:COORDINATOR", ("worker ready", Event.REPLACED),
            Transition("ignore", {Outcome.DONE: "absent"})),
        seed=3,
    ),
    mutant(
        "a second hello is of a new worker",
        row("protocol.transitions:COORDINATOR", ("worker ready", "WorkerHello"),
            COORDINATOR["worker waiting", "WorkerHello"]),
        seed=12,
    ),
    mutant(
        "lease numbers start again with every run",
        edit("coordinator.run_control:RunControl._make", "self.last_lease", "0"),
        seed=0,
    ),
    mutant(
        "lease numbers start again with every balancer",
        edit("coordinator.state:CoordinatorState.__init__",
             "self.last_lease = incarnation * NUMBERS_PER_INCARNATION", "self.last_lease = 0"),
        seed=0,
    ),
    mutant(
        "a result is taken from any lease, any number of times",
        edit("coordinator.run.leases:LeaseTable._take_off",
             """
             if not own and self.pop(lease.number) is None:
                 self._late.pop(lease.number, None)
             """,
             "own.update(found)"),
        seed=802,
    ),
    mutant(
        "costs that arrive twice count twice",
        edit("coordinator.run.planning_feed:PlanningFeed.store_costs",
             "sample.cost is None", "True"),
        seed=2,
    ),
    mutant(
        "costs are kept by their place in the epoch",
        edit("coordinator.run.known_costs:OpenSamples.note_measured",
             "[sample.index for sample in samples]", "[sample.ordinal for sample in samples]"),
        seed=7,
    ),
    mutant(
        "samples that are known are planned by the place of others",
        edit("coordinator.run.known_costs:OpenSamples.costs",
             "self._order[begin:end]", "np.arange(begin, end)"),
        seed=7,
    ),
    mutant(
        "samples that are not known are passed over",
        edit("coordinator.run.known_costs:OpenSamples.open",
             "self._left += self._not_known(self.end, end)", ""),
        seed=0,
    ),
    mutant(
        "a batch is taken however often it comes",
        edit("protocol.rank_session:RankSession._store_batch",
             "position in self._requested", "True"),
        seed=3,
    ),
    mutant(
        "a batch of another run is taken",
        edit("protocol.rank_session:RankSession._store_batch",
             "batch.run != self.run or batch.rank not in self.ranks",
             "batch.rank not in self.ranks"),
        seed=431,
    ),
    mutant(
        "the end of another run is taken",
        edit("protocol.rank_session:RankSession._store_end", "message.run == self.run", "True"),
        seed=41,
    ),
    # --- leases
    mutant(
        "leases are not renewed",
        edit("coordinator.worker_handlers:WorkerHandlers._record_progress",
             "lease.deadline = self.now + run.leases.lease_s", ""),
        seed=13,
    ),
    mutant(
        "leases never end",
        edit("coordinator.run.leases:LeaseTable.take_expired", "held.deadline <= now", "False"),
        seed=184,
    ),
    mutant(
        "a lease of a lost worker is lost",
        edit("coordinator.worker_handlers:WorkerHandlers.release_worker",
             "self.run.give_back(self.run.leases.take_of_worker(peer))",
             "self.run.leases.take_of_worker(peer)"),
        seed=3,
    ),
    mutant(
        "a lease that ran out is lost",
        edit("coordinator.run.granting:SampleWork.return_expired",
             "self.give_back(expired)", "None"),
        seed=36,
    ),
    mutant(
        "what a worker passed over is lost",
        edit("coordinator.run.epoch:EpochRun._complete",
             "self.give_back(self.leases.take_skipped(worker, lease))",
             "self.leases.take_skipped(worker, lease)"),
        seed=8,
    ),
    mutant(
        "a probe lease that was lost is not done again",
        edit("coordinator.run.known_costs:OpenSamples.requeue",
             "self._again.appendleft(sample)", "None"),
        seed=46,
    ),
    mutant(
        "a late worker is never forgiven",
        edit("coordinator.worker_handlers:WorkerHandlers._judge",
             "self.set_unresponsive(worker, False)", ""),
        edit("coordinator.worker_handlers:WorkerHandlers.confirm_worker",
             "self.set_unresponsive(self.workers[peer], False)", "pass"),
        seed=15,
    ),
    mutant(
        "one death is enough to give a sample up",
        constant("coordinator.run.granting:MAX_CRASHES", 1),
        seed=1,
    ),
    mutant(
        "nobody is suspected",
        edit("coordinator.run.granting:SampleWork.count_crash",
             "sample.crash_count += 1", ""),
        seed=3,
    ),
    # --- the byte budget
    mutant(
        "credit leaks with every payload",
        edit("coordinator.delivery.sample:ByteBudget.release_reserved",
             "released_bytes += sample.reserved", "released_bytes += sample.reserved - 1"),
        seed=4,
    ),
    mutant(
        "the front has no credit of its own",
        edit("coordinator.delivery.decoding:DecodeScheduler._may_exceed",
             "sample.position == self.planned.front", "False"),
        seed=25,
    ),
    mutant(
        "the front is dropped, too",
        edit("coordinator.delivery.decoding:DecodeScheduler.evict",
             "latest.step >= 0 and latest.position <= self.planned.front", "False"),
        seed=10,
    ),
    mutant(
        "what was dropped is never decoded again",
        edit("coordinator.delivery.decoding:DecodeScheduler._drop", "self.queue(sample)", "None"),
        seed=4,
    ),
    # --- holes
    mutant(
        "a step leaves before all its holes are known",
        edit("coordinator.delivery.step:PendingStep.is_blocked",
             "self.waits_for_holes and self.unsettled > 0",
             "False"),
        seed=3,
    ),
    mutant(
        "a hole is not reported to the ranks",
        edit("coordinator.delivery.step:pack", "tuple(sorted(step.holes))", "()"),
        seed=2,
    ),
    mutant(
        "holes of the ledger are forgotten",
        edit("coordinator.delivery.tracker:DeliveryTracker.learn_holes",
             "self._known_holes.update(holes)", "None"),
        seed=103,
    ),
    # --- asking and acknowledging
    mutant(
        "an acknowledgement is of its own microbatch only",
        edit("coordinator.delivery.tracker:DeliveryTracker._take_before",
             "batches[step.taken[rank] : end]", "batches[max(0, end - 1) : end]"),
        seed=50,
    ),
    mutant(
        "an acknowledgement that comes before its step is planned is forgotten",
        edit("coordinator.delivery.tracker:DeliveryTracker.acknowledge",
             "is_planned or number > max(self.steps, default=-1)", "is_planned"),
        seed=355,
    ),
    mutant(
        "the last acknowledgement is never sent again",
        edit("protocol.rank_session:RankSession._open_messages",
             "self._acks.values()", "()"),
        seed=808,
    ),
    mutant(
        "a batch that was asked for again is not sent again",
        edit("coordinator.peers.requests:PendingRequests.add",
             "key = _key(request, peer)",
             """
             key = _key(request, peer)
             seen = self.__dict__.setdefault("seen", set())
             if key in seen:
                 return
             seen.add(key)
             """),
        seed=2,
    ),
    mutant(
        "a rank that is not known is not answered",
        edit("coordinator.rank_handlers:RankHandlers.identify_rank",
             "self.send(peer, UnknownPeer())", "pass"),
        seed=0,
    ),
    mutant(
        "a lease that was lost is waited for until it runs out",
        edit("coordinator.worker_handlers:WorkerHandlers._record_progress",
             "before != IDLE or now != IDLE", "True"),
        seed=161,
    ),
    mutant(
        "a rank that comes back does not begin",
        edit("protocol.rank_session:RankSession._return",
             "[self.hello, begun, *self._open_messages(with_totals=True)]",
             "[self.hello, *self._open_messages(with_totals=True)]"),
        seed=0,
    ),
    # --- runs and places
    mutant(
        "the epoch ends one sample early",
        edit("coordinator.run.planning_feed:PlanningFeed._open_window",
             "len(self.order)", "len(self.order) - 1"),
        seed=0,
    ),
    mutant(
        "the end of the epoch is one step late",
        edit("coordinator.machine:Coordinator._answer_requests",
             "request.step >= run.feed.step", "request.step > run.feed.step"),
        seed=0,
    ),
    mutant(
        "the place after a step is beyond its window",
        edit("coordinator.run.planning_feed:PlanningFeed._deliver_step",
             "EpochPosition(window.start, window.first, batch.step + 1, 0, window.costs)",
             "EpochPosition(window.end, batch.step + 1, batch.step + 1, 0, window.costs)"),
        seed=17,
    ),
    mutant(
        "the place after a window is in it",
        edit("coordinator.run.planning_feed:PlanningFeed._deliver_step",
             "EpochPosition(window.end, last, last, 0, window.costs)",
             "EpochPosition(window.start, window.first, last, 0, window.costs)"),
        seed=0,
    ),
    mutant(
        "steps of a window before the place are delivered again",
        edit("coordinator.run.planning_feed:PlanningFeed._deliver_step",
             "batch.step >= self.first.step", "True"),
        seed=355,
    ),
    mutant(
        "the next run starts before all have left the last",
        edit("coordinator.run_control:RunControl._next_start",
             "run is not None and len(self._ranks_beyond(current)) < job.plan.ranks", "False"),
        seed=221,
    ),
    mutant(
        "a run goes on from where the farthest rank is",
        edit("coordinator.run_control:RunControl._next_start",
             "min(later, key=lambda each: (each.run, each.start.step, each.start.microbatch))",
             "max(later, key=lambda each: (each.run, each.start.step, each.start.microbatch))"),
        seed=85,
    ),
    mutant(
        "a run is not put back for a rank that is behind",
        edit("coordinator.rank_handlers:RankHandlers.start_run",
             "self.run is not None and self.run.starts_after(start, rank.hello.ranks)", "False"),
        seed=85,
    ),
    mutant(
        "ranks served inside a step are served again",
        edit("protocol.rank_session:RankSession.begin",
             "(*self._start, served)", "(*self._start, 0)"),
        seed=355,
    ),
)  # fmt: skip
