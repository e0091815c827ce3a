"""Ranks that pull payloads from workers: pulls are lost, late, gone, rubbish or impossible."""

from collections import Counter

import pytest

from tests.simulation.cluster import Simulation
from tests.simulation.transport.pulls import (
    SimulatedPuller,
    SimulatedPullServer,
)
from tests.simulation.trial import trial
from tests.simulation.variants import PULLED_VARIANTS, settings_of

CHUNK = 10
LONG = pytest.mark.long
# What is under way when the last rank leaves has arrived by then.
AFTER_S = 5.0


@pytest.mark.parametrize("chunk", [0, *(pytest.param(n, marks=LONG) for n in range(1, 10))])
def test_faults_change_nothing_where_payloads_are_pulled(chunk: int) -> None:
    seeds = range(chunk * CHUNK, (chunk + 1) * CHUNK)
    verdicts = [trial(seed, variants=PULLED_VARIANTS) for seed in seeds]
    assert not [f"seed {v.seed}, {v.variant}: {v.wrong}" for v in verdicts if v.wrong]


@pytest.mark.parametrize("variant", ["pulled, plain", "pulled, decoded first", "pulled, shared"])
def test_most_is_pulled_and_nothing_is_kept_at_the_end(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[str] = Counter()
    read = SimulatedPuller.read

    def counting(puller: SimulatedPuller, batch, frames):
        found = read(puller, batch, frames)
        counts["lost" if found is None else "had"] += 1
        counts["pulled"] += sum(item.serial > 0 for item in batch.items)
        return found

    monkeypatch.setattr(SimulatedPuller, "read", counting)
    simulation = Simulation(settings_of(variant), seed=2)
    assert not simulation.run().trouble
    assert counts["pulled"] > 80
    assert counts["lost"]
    over = simulation.world.now + AFTER_S
    while simulation.world.now < over and simulation.world.network.step():
        pass
    servers: list[SimulatedPullServer] = [*simulation.world.servers.values()]
    assert [(len(each.store), each.store.nbytes) for each in servers] == [(0, 0)] * 3
