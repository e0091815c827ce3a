"""Planted bugs in what is known of microbatches that workers have laid out.

test_mutants.py plants them one by one and expects the trials of such workers to notice each. That a
part is kept beside a sample they do not show: test_laid_out.py has that.
"""

from tests.balancer.coordinator.planting import Mutant, Plant, edit


def mutant(what: str, *plants: Plant, seed: int) -> Mutant:
    """Return a planted bug; `seed` is one that shows it, of the trials of laid out batches."""
    return Mutant(what, plants, seed)


LAID_OUT_MUTANTS = (
    mutant(
        "a part of a batch is dropped alone",
        edit("coordinator.delivery.decoding:DecodeScheduler._parts",
             "(sample,) if found is None else found[1].samples", "(sample,)"),
        seed=3,
    ),
    mutant(
        "parts of batches are not told from samples",
        edit("coordinator.delivery.announced:_mark_parts",
             "payload.parts = end - begin", "None"),
        seed=3,
    ),
)  # fmt: skip
