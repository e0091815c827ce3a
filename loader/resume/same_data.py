"""Checks that a ledger is of the data that a loader has; data that have grown only if asked to."""

from ...workers.sources.data_identity import KnownData
from .ledger import Ledger

GROWING = "DataLoader(growing_data=True)"


def check_same_data(
    ledger: Ledger, now: KnownData, growing: bool | None = None, why_not: str = ""
) -> None:
    """Raise ValueError, with the field, for a ledger of other data.

    growing: whether the data may have become more since, None where no option says so; `why_not`
    says why the position cannot be gone on from then, "" if it can.
    """
    identity = now.identity
    if ledger.data == identity and ledger.samples == now.samples:
        return
    differs = f"data was {ledger.data!r} and is {identity!r}"
    if ledger.samples != now.samples:
        differs = f"samples was {ledger.samples} and is {now.samples}"
    reason = f"the ledger is of other data: its {differs}"
    if not growing or not _have_grown(ledger, now):
        hint = f"; {GROWING} goes on where they have only become more" if growing is False else ""
        raise ValueError(f"{reason}: resume with the same data set{hint}")
    if why_not:
        raise ValueError(f"{reason}, and {why_not}: begin the epoch again, or save between epochs")


def _have_grown(ledger: Ledger, now: KnownData) -> bool:
    """Return whether the ledger's samples are the first of those that there are now."""
    if ledger.samples is None or now.samples is None or now.samples <= ledger.samples:
        return False
    first = now.identity_of_first(ledger.samples)
    # Where the data cannot say what they were, their class is the same at least.
    kept = first if first is not None else now.identity.partition(" ")[0]
    return ledger.data == kept or (first is None and ledger.data.partition(" ")[0] == kept)
