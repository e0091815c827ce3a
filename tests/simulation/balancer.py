"""The balancer's process in a simulated cluster: a coordinator without a socket."""

from counterpoise.balancer.coordinator.machine import Coordinator
from counterpoise.balancer.coordinator.run.known_costs import CostMemory, KnownCosts
from counterpoise.balancer.job.effects import Send
from counterpoise.balancer.protocol.job_spec import JobSpec
from counterpoise.balancer.protocol.messages import Message
from tests.simulation.watch import Watch
from tests.simulation.world import World

TICK_S = 0.5


class NoMemory(CostMemory):
    """Has each run measure its samples again."""

    def known_to(
        self,
        job: JobSpec,
        count: int,
        fingerprint: str,
        whole: bool,
        believed: bool,  # noqa: ARG002
    ) -> KnownCosts:
        """Return nothing of what runs before have measured."""
        return super().known_to(job, count, fingerprint, whole, believed=False)


def _credentials(_: bytes) -> tuple[bytes, bytes]:
    return b"", b"a password"


class BalancerProcess:
    """Stands for server/loop.py. Down, it receives nothing; it restarts without a state."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.coordinator: Coordinator | None = None
        self.watch = Watch(world.settings.sharers)
        self._incarnation = 0

    def start(self) -> None:
        """Start it, with nothing but its job."""
        settings = self.world.settings
        self.coordinator = Coordinator(
            settings.job if settings.fixed_job else None,
            settings.plan_with,
            settings.heartbeat_timeout_s,
            self._incarnation,
            make_credentials=_credentials,
        )
        if not settings.keeps_costs:
            self.coordinator.costs = NoMemory()
        self._incarnation += 1
        self._tick(self.coordinator)

    def crash(self, down_s: float) -> None:
        """Kill it: all connections break. Start it again after `down_s`."""
        if self.coordinator is None:
            return
        self.coordinator = None
        for party in {party for party, _ in self.world.peers.values()}:
            self.world.network.sever(party)
        self.world.network.at(down_s, self.start)

    def deliver(
        self, party: str, peer: bytes, message: Message, payloads: tuple[bytes, ...] = ()
    ) -> None:
        """Send it a message over the network."""
        wired = self.world.wired(message, len(payloads))

        def arrive() -> None:
            if self.coordinator is not None:
                if self.world.traced:
                    self.world.trace("balancer receives", peer.decode(), message)
                self.watch.received(self.coordinator, peer, message)
                now = self.world.now
                self._emit(self.coordinator.handle(peer, wired, payloads, now))
                if self.coordinator.next_deadline() <= now:  # the next run can be prepared
                    self._emit(self.coordinator.tick(now))

        self.world.network.send(party, peer, "up", arrive)

    def _tick(self, coordinator: Coordinator) -> None:
        if coordinator is self.coordinator:
            self._emit(coordinator.tick(self.world.now))
            self.world.network.at(TICK_S, lambda: self._tick(coordinator))

    def _emit(self, effects: list[Send]) -> None:
        coordinator = self.coordinator
        if coordinator is None:
            return
        if coordinator.run is not None:
            held = coordinator.run.delivery.budget.held_bytes
            self.world.outcome.most_held = max(self.world.outcome.most_held, held)
        for effect in effects:
            broken = self.watch.sent(coordinator, effect)
            if broken:
                self.world.fail(broken)
            self._send(coordinator, effect)

    def _send(self, coordinator: Coordinator, effect: Send) -> None:
        world, peer = self.world, effect.peer
        message = world.wired(effect.message, len(effect.payloads))
        known = world.peers.get(peer)

        def arrive() -> None:
            found = world.peers.get(peer)
            if found is not None:
                found[1](message, effect.payloads)
            else:
                come_back()

        def come_back() -> None:
            if coordinator is self.coordinator:
                self._emit(coordinator.unreachable(peer, message, world.now))

        if known is None:
            world.network.at(world.soon(), arrive)
        elif world.cut_off.get(known[0], 0.0) > world.now:
            world.network.at(world.soon(), come_back)
        else:
            world.network.send(known[0], peer, "down", arrive)
