"""Planted bugs in what is known of runs of payloads in workers' memory.

test_mutants.py plants them one by one and expects the trials of lent memory to notice each.
"""

from tests.balancer.coordinator.planting import Mutant, Plant, edit


def mutant(what: str, *plants: Plant, seed: int) -> Mutant:
    """Return a planted bug; `seed` is one that shows it, of the trials of lent memory."""
    return Mutant(what, plants, seed)


LENT_MUTANTS = (
    mutant(
        "a run is freed with the first of its payloads",
        edit("coordinator.delivery.shared_payloads:SharedRun.let_go",
             "if self._needed:\n self.idle_bytes += nbytes\n self.owner.idle_bytes += nbytes\n"
             "else:\n self.owner.free(self)",
             "self.owner.free(self)"),
        seed=0,
    ),
    mutant(
        "only the first rank that was sent something of a run is named",
        edit("coordinator.delivery.tracker:DeliveryTracker.mark_sent",
             "run.readers.add(peer)",
             "run.readers.update(() if run.readers else (peer,))"),
        seed=0,
    ),
)  # fmt: skip
