"""Workers that lend their memory to ranks, on a network with faults, and handles of nothing."""

import pytest

from tests.simulation.cluster import Simulation
from tests.simulation.transport.memory import SimulatedLender
from tests.simulation.trial import trial
from tests.simulation.variants import (
    LAID_OUT_VARIANTS,
    LENT_VARIANTS,
    settings_of,
)

CHUNK = 22
LONG = pytest.mark.long
# What is under way when the last rank leaves has arrived by then.
AFTER_S = 5.0


@pytest.mark.parametrize("chunk", [0, *(pytest.param(n, marks=LONG) for n in range(1, 10))])
def test_faults_change_nothing_where_memory_is_lent(chunk: int) -> None:
    seeds = range(chunk * CHUNK, (chunk + 1) * CHUNK)
    verdicts = [trial(seed, variants=LENT_VARIANTS) for seed in seeds]
    assert not [f"seed {v.seed}, {v.variant}: {v.wrong}" for v in verdicts if v.wrong]


@pytest.mark.parametrize("chunk", [0, *(pytest.param(n, marks=LONG) for n in range(1, 10))])
def test_faults_change_nothing_where_microbatches_are_laid_out(chunk: int) -> None:
    seeds = range(chunk * CHUNK, (chunk + 1) * CHUNK)
    verdicts = [trial(seed, variants=LAID_OUT_VARIANTS) for seed in seeds]
    assert not [f"seed {v.seed}, {v.variant}: {v.wrong}" for v in verdicts if v.wrong]


@pytest.mark.parametrize(
    "variant",
    [
        *("lent, plain", "lent, small", "lent, left early", "lent, decoded first", "lent, shared"),
        *("laid out, plain", "laid out, small"),
    ],
)
def test_all_memory_comes_back(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inline, lent, serials = [], [], set()

    class Watched(SimulatedLender):
        def lend(self, payload: bytes, joins: bool) -> object:  # type: ignore[override]
            handle = super().lend(payload, joins)
            if isinstance(handle, bytes):
                inline.append(handle)
            else:
                serials.add((self.book.token, handle.serial))
                lent.append(handle)
            return handle

    monkeypatch.setattr("tests.simulation.world.SimulatedLender", Watched)
    simulation = Simulation(settings_of(variant), seed=3)
    outcome = simulation.run()
    assert not outcome.trouble
    over = simulation.world.now + AFTER_S
    while simulation.world.now < over and simulation.world.network.step():
        pass
    assert [len(each.book) for each in simulation.world.lenders.values()] == [0, 0, 0]
    assert len(inline) < outcome.leased / 4
    assert len(serials) < 0.8 * len(lent)  # several are in one run
