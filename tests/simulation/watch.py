"""Check promises that show in the balancer's messages, whatever is delivered in the end.

No two leases of the balancers at an address have one number; what all know to be delivered is not
decoded again; a worker process is not let in while its successor is there; of the processes that
share a rank none is further ahead of another than it prefetches.
"""

from counterpoise.balancer.coordinator.machine import Coordinator
from counterpoise.balancer.coordinator.run.epoch import EpochRun
from counterpoise.balancer.job.effects import Send
from counterpoise.balancer.protocol.messages import Message, StartRun, Welcome, WorkerHello
from counterpoise.balancer.protocol.payload_messages import Ack, Batch, Lease

Place = tuple[int, int]


class Watch:
    """Watches a balancer, and those that are started after it."""

    def __init__(self, sharers: int = 1) -> None:
        """`sharers` is how many processes share each rank."""
        self.leased = 0
        self._sharers = sharers
        self._numbers: set[int] = set()
        self._replaced: set[bytes] = set()
        self._run: EpochRun | None = None
        self._epoch = -1
        # Of the run: which microbatch of a rank a sample is in, and what each process of a rank,
        # by its number among those that share the rank, has had.
        self._place: dict[int, tuple[int, Place]] = {}
        self._had: dict[int, dict[int, Place]] = {}
        # The last step of which a process has had some, as it says, by its address, run and rank.
        # A balancer that starts the run again still knows it, and a process never goes back in it,
        # though a message that was delayed may tell what it had before.
        self._in_step: dict[tuple[bytes, int, int], int] = {}

    def received(self, coordinator: Coordinator, peer: bytes, message: Message) -> None:
        """Record a message that a balancer is about to receive."""
        if isinstance(message, Ack):
            self._acknowledged(coordinator, peer, message)
        elif isinstance(message, StartRun):
            self._started(coordinator, peer, message)
        elif isinstance(message, WorkerHello):
            self._greeted(coordinator, peer, message)

    def _greeted(self, coordinator: Coordinator, peer: bytes, hello: WorkerHello) -> None:
        there = [each.hello for each in coordinator.workers.values()]
        newer = [h for h in there if h.name == hello.name and h.incarnation > hello.incarnation]
        if newer:
            self._replaced.add(peer)
        else:
            self._replaced.discard(peer)

    def _started(self, coordinator: Coordinator, peer: bytes, start: StartRun) -> None:
        rank, here = coordinator.ranks.get(peer), start.start
        for number in rank.hello.ranks if rank is not None else ():
            self._comes_to(peer, start.run, number, here.step - (not here.microbatch))

    def _comes_to(self, peer: bytes, run: int, rank: int, step: int) -> None:
        place = peer, run, rank
        self._in_step[place] = max(step, self._in_step.get(place, step))

    def _acknowledged(self, coordinator: Coordinator, peer: bytes, ack: Ack) -> None:
        """Record what a rank has taken; of what all have, only what the coordinator can know."""
        self._comes_to(peer, ack.run, ack.rank, ack.step)
        self._turn_to(coordinator.run)
        run = coordinator.run
        running = coordinator.state_of(peer) == "rank running"
        if running and run is not None and run.number == ack.run:
            place = ack.step, ack.microbatch
            had = self._had.setdefault(ack.rank, {})
            sharer = coordinator.ranks[peer].hello.sharer
            had[sharer] = max(place, had.get(sharer, place))

    def sent(self, coordinator: Coordinator, effect: Send) -> str:
        """Return the promise that a message breaks, "" if none."""
        message = effect.message
        if isinstance(message, Batch):
            return self._sent_batch(coordinator, effect.peer, message)
        if isinstance(message, Welcome) and effect.peer in self._replaced:
            return f"{effect.peer.decode()} was let in, though its successor is there"
        if not isinstance(message, Lease):
            return ""
        if message.lease in self._numbers:
            return f"two leases have the number {message.lease}"
        self._numbers.add(message.lease)
        return self._again(coordinator, effect.peer, message) if message.kind == "decode" else ""

    def _sent_batch(self, coordinator: Coordinator, peer: bytes, batch: Batch) -> str:
        self._turn_to(coordinator.run)
        place = batch.rank, (batch.step, batch.microbatch)
        self._place |= {item.ordinal: place for item in batch.items}
        return self._too_far_ahead(coordinator, peer, batch)

    def _too_far_ahead(self, coordinator: Coordinator, peer: bytes, batch: Batch) -> str:
        """Return whom a process leaves too far behind that shares its rank, as far as is known."""
        ranks = coordinator.ranks
        for each in ranks.values():
            counts = each.started is not None and each.started.run == batch.run
            if not counts or each.peer == peer or batch.rank not in each.hello.ranks:
                continue
            behind = self._in_step[each.peer, batch.run, batch.rank]
            if batch.step > behind + ranks[peer].hello.ahead:
                return f"step {batch.step} was sent while {each.peer.decode()} is in step {behind}"
        return ""

    def _again(self, coordinator: Coordinator, peer: bytes, lease: Lease) -> str:
        run = coordinator.run
        self._turn_to(run)
        if run is None:
            return ""
        # One that helps a slow worker may be for nothing.
        leases = run.leases.of_worker(peer)
        helps = any(each.shared for each in leases if each.number == lease.lease)
        self.leased += 0 if helps else len(lease.refs)
        had = [ref.ordinal for ref in lease.refs if self._is_had(run, ref.ordinal)]
        return f"samples {had} were delivered and are decoded again" if had else ""

    def _is_had(self, run: EpochRun, ordinal: int) -> bool:
        """Return whether a sample is known to be delivered, and what it is need not be known.

        A run that was started again has to find out whether it is a hole, before ranks that have
        not had all of its step can be sent others of that.
        """
        rank, place = self._place.get(ordinal, (-1, (0, 0)))
        if not self._have_had(rank, place):
            return False
        step = run.delivery.steps.get(place[0])
        if step is None or not step.is_blocked or place[0] < run.begin.start.step:
            return True
        return all(self._have_had(each, (place[0] + 1, 0)) for each in range(len(step.ranks)))

    def _have_had(self, rank: int, place: Place) -> bool:
        """Return whether all who share a rank have had a microbatch, or later ones."""
        had = self._had.get(rank, {})
        return len(had) == self._sharers and place <= min(had.values())

    def _turn_to(self, run: EpochRun | None) -> None:
        if run is not self._run:
            self._run, self._had = run, {}
            if run is not None and self._epoch != run.begin.epoch:
                self._epoch = run.begin.epoch
                self._place.clear()
