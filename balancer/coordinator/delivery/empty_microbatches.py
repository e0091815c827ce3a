"""Give microbatches that consist of holes a sample, for loops that cannot take an empty one.

torch's default_collate makes no batch of no samples, and a rank that left a microbatch out would
make the others wait for ever. So once a step's holes are known, a microbatch without a usable
sample gets one of a microbatch that has more. Which one follows from the plan and the holes alone,
so that a resumed run does the same. The step's samples and the sums of its weights stay as they
are; budgets hold, as a sample that fits among others fits alone.
"""

from .sample import Sample
from .step import PendingMicrobatch, PendingStep

# (rank, microbatch) of one step.
Cell = tuple[int, int]


def fill_empty_microbatches(step: PendingStep) -> list[Sample] | None:
    """Move samples to a step's empty microbatches, none of the step being taken; return them.

    Return None, and move nothing, if there are fewer usable samples than microbatches.
    """
    batches = {(r, m): b for r, rank in enumerate(step.ranks) for m, b in enumerate(rank)}
    usable = {cell: _usable(batch) for cell, batch in batches.items()}
    if sum(map(len, usable.values())) < len(batches):
        return None
    moved = []
    for cell in [cell for cell, samples in usable.items() if not samples]:
        giver = _giver(usable, cell)
        sample = usable[giver].pop()
        usable[cell].append(sample)
        _move(sample, batches[giver], batches[cell])
        rank, microbatch = cell
        sample.place = step.number, microbatch, rank
        moved.append(sample)
    return moved


def _usable(batch: PendingMicrobatch) -> list[Sample]:
    return [sample for sample in batch.samples if not sample.reason]


def _giver(usable: dict[Cell, list[Sample]], cell: Cell) -> Cell:
    """Return the largest microbatch (the first of several) that can spare a sample for another.

    Those that run at the same time on other ranks come first: what must be held for one microbatch
    of every rank then stays the same.
    """
    able = [each for each, samples in usable.items() if len(samples) > 1]
    beside = [each for each in able if each[1] == cell[1]]
    return max(beside or able, key=lambda each: len(usable[each]))


def _move(sample: Sample, old: PendingMicrobatch, new: PendingMicrobatch) -> None:
    old.samples = tuple(each for each in old.samples if each is not sample)
    new.samples = tuple(sorted([*new.samples, sample], key=lambda each: each.ordinal))
    old.missing -= sample.is_missing
    new.missing += sample.is_missing
