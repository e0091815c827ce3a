"""Handles of payloads each of which is a run of its own."""

from counterpoise.balancer.protocol.messages import Handles, PayloadHandle


def own_runs(*payloads: PayloadHandle | None) -> Handles:
    """Return the handles of items, None for one whose payload is in a frame."""
    runs = tuple(each for each in payloads if each is not None)
    numbers = iter(range(len(runs)))
    run_of = tuple(-1 if each is None else next(numbers) for each in payloads)
    lengths = tuple(0 if each is None else each.nbytes for each in payloads)
    return Handles(runs, run_of, (0,) * len(payloads), lengths)
