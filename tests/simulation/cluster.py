"""Run the whole system in one process: coordinator, workers and ranks, network and clock.

Everything that could differ between two runs of a real cluster (delays, order of arrival, speed of
workers, crashes and restarts) is drawn from one seed, so a run can be replayed exactly. Payloads
are made from the sample's index and epoch, as a decoder with seeded augmentation would make them.
"""

import random

from tests.simulation.balancer import BalancerProcess
from tests.simulation.faults import BALANCER, CUT_OFF, PARTIES, RANKS_DIE, TRAINER, Fault
from tests.simulation.trainer import Trainer
from tests.simulation.transport.network import DISTURBANCES, Disturbance, SimulatedNetwork
from tests.simulation.workers import Workers
from tests.simulation.world import ClusterSettings, SimulationResult, World

# How long a trainer is down that is restarted because some of its processes have died.
RESTART_S = 0.5


class Simulation:
    """One run of a simulated cluster."""

    def __init__(self, settings: ClusterSettings, seed: int, traced: bool = False) -> None:
        draws = random.Random(seed)
        network = SimulatedNetwork(draws, settings.delay_s, settings.duplicate)
        self.world = World(settings, draws, network, traced)
        self.balancer = BalancerProcess(self.world)
        self.workers = Workers(self.world, self.balancer.deliver)
        self.trainer = Trainer(self.world, self.balancer.deliver)

    def run(self) -> SimulationResult:
        """Run until every rank has finished, the run fails, or the time is up."""
        world, settings, network = self.world, self.world.settings, self.world.network
        self.balancer.start()
        for slot in range(settings.workers):
            network.at(world.soon(), lambda slot=slot: self.workers.start(slot))  # type: ignore[misc]
        for time, slot in settings.crashes:
            network.at(time, lambda slot=slot: self.workers.crash(slot, settings.restart_s))  # type: ignore[misc]
        for time, slot in settings.hangs:
            network.at(time, lambda slot=slot: self.workers.hang(slot))  # type: ignore[misc]
        for time, party in settings.deaths:
            network.at(time, lambda party=party: self.trainer.kill(party))  # type: ignore[misc]
        for fault in settings.faults:
            network.at(fault.at, lambda fault=fault: self._fault(fault))  # type: ignore[misc]
        self.trainer.start(settings.start)
        while not world.over and network.now < settings.limit_s and network.step():
            pass
        if not world.over:
            ranks = self.trainer.processes.values()
            left = sorted(rank.party for rank in ranks if not rank.done)
            world.outcome.stuck = True
            world.outcome.trouble = f"stuck at {network.now:.1f} s: {left}"
        world.outcome.seconds = network.now
        world.outcome.leased = self.balancer.watch.leased
        if self.balancer.coordinator is not None:
            world.outcome.expired = self.balancer.coordinator.diagnostics.expired
        return world.outcome

    def _fault(self, fault: Fault) -> None:
        self.world.trace("FAULT", fault)
        until = self.world.now + fault.lasts_s
        kind = fault.kind.partition(" ")[0]
        # Beside the loss of messages: the balancer is told that it cannot reach such a party.
        if fault.kind == CUT_OFF:
            self.world.cut_off[fault.party] = until
        if kind in DISTURBANCES:
            self.world.network.disturb(fault.party, Disturbance(kind, fault.way, until))
        elif kind == "reset":
            self.world.network.sever(fault.party)
        elif kind == "crash":
            self._crash(fault)
        elif fault.kind == RANKS_DIE:
            for party in fault.party.split(PARTIES):
                self.trainer.kill(party)
            self.world.network.at(fault.lasts_s, lambda: self.trainer.crash(RESTART_S))
        elif fault.kind == "disk full" and fault.party == TRAINER:
            self.trainer.disk_full_until = until
        elif fault.kind == "disk full":
            self.workers.fill_disk(fault)
        else:
            self.workers.hold_up(fault)
            self.trainer.slow_down(fault.party, until)

    def _crash(self, fault: Fault) -> None:
        if fault.party == BALANCER:
            self.balancer.crash(fault.lasts_s)
        elif fault.party == TRAINER:
            self.trainer.crash(fault.lasts_s)
        else:
            self.workers.crash(int(fault.party.split()[1]), fault.lasts_s)
