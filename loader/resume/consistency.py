"""Checks that the fields of a ledger can be true together, as far as that takes no data to tell."""

from collections.abc import Iterator

from .ledger import BalancedLedger, Ledger, PlainLedger, PlannedLedger, SamplerLedger

# A field, its value, and the least and the most that this may be beside the other fields.
Bound = tuple[str, int, int, int]


def check_consistent(ledger: Ledger) -> None:
    """Raise ValueError for fields that cannot be true together: what one is, and what it may be."""
    if isinstance(ledger, PlannedLedger) and ledger.samples is None and ledger.start:
        raise ValueError(f"ledger.samples is None, but {ledger.start} samples were planned")
    for name, value, least, most in _bounds(ledger):
        if not least <= value <= most:
            allowed = f"only {least} is" if least >= most else f"{least} to {most} are"
            raise ValueError(
                f"ledger.{name} is {value}, and beside its other fields {allowed} possible: it was "
                "changed or damaged; load it as state_dict() returned it"
            )
    for name, values in _distinct(ledger):
        if len(set(values)) != len(values):
            raise ValueError(f"ledger.{name} has a number twice: {values!r:.80}")


def _bounds(ledger: Ledger) -> Iterator[Bound]:
    if isinstance(ledger, PlannedLedger):
        yield from _of_planned(ledger)
    if isinstance(ledger, BalancedLedger):
        yield from _of_balanced(ledger)
    if isinstance(ledger, SamplerLedger):
        yield "before", ledger.before, 0, ledger.given if ledger.step else 0
    if isinstance(ledger, PlainLedger):
        yield from _of_plain(ledger)


def _of_planned(ledger: PlannedLedger) -> Iterator[Bound]:
    # Nobody has been given anything before the number of samples is known.
    count = ledger.samples or 0
    yield "start", ledger.start, 0, count
    yield "step", ledger.step, 0, count  # each step has a sample, at least


def _of_balanced(ledger: BalancedLedger) -> Iterator[Bound]:
    count, end = ledger.samples or 0, ledger.step * ledger.samples_per_step
    is_inside = ledger.microbatch > 0 or ledger.served > 0 or ledger.step != ledger.window_step
    yield "served", ledger.served, 0, ledger.ranks - 1
    if ledger.mode == "exact":
        # Each step is a window of its own.
        yield "window_step", ledger.window_step, ledger.step, ledger.step
        yield "start", ledger.start, min(end, count), min(end, count)
    yield "window_step", ledger.window_step, 0, min(ledger.step, ledger.start)
    if is_inside:
        yield "start", ledger.start, 0, count - 1
    begun = min(count, end + ledger.samples_per_step) if is_inside else ledger.start
    for hole in ledger.holes:
        yield "holes", hole, 0, (begun if ledger.mode == "exact" else count) - 1


def _of_plain(ledger: PlainLedger) -> Iterator[Bound]:
    top = ledger.batches + len(ledger.waiting)
    yield "turn", ledger.turn, 0, max(0, len(ledger.readers) - 1)
    for number in ledger.waiting:
        yield "waiting", number, 0, top - 2  # the last one of all was handed out
    for reader in ledger.readers:
        yield "readers.read", reader.read, 0, 2**53


def _distinct(ledger: Ledger) -> Iterator[tuple[str, tuple[int, ...]]]:
    if isinstance(ledger, BalancedLedger):
        yield "holes", ledger.holes
    if isinstance(ledger, PlainLedger):
        yield "waiting", ledger.waiting
