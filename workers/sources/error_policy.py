"""The error policies: a user's choice of what follows when a sample cannot be used."""

from typing import Literal, get_args

OnError = Literal["raise", "skip", "refill"]
ON_ERROR: tuple[OnError, ...] = get_args(OnError)
BALANCED = (
    "and cannot be balanced: a plan is made from all samples of a window, and another sample in a "
    "hole's place would change the batches of all ranks"
)


def checked_on_error(on_error: str, no_refill: str = "") -> OnError:
    """Return the policy of that name; ValueError where there is none, or it does not apply.

    "raise" ends the run at the sample, "skip" leaves it out (a hole of weight 0 in a plan),
    "refill" takes the next sample of a stream in its place. `no_refill` is the reason why there
    can be no refill here, empty where there can.

    >>> checked_on_error("skip", no_refill="got a list")
    'skip'
    """
    if on_error not in ON_ERROR:
        raise ValueError(f"on_error is {on_error!r}, allowed are {ON_ERROR}")
    if on_error == "refill" and no_refill:
        raise ValueError(
            "on_error='refill' takes the next sample of an IterableDataset in batches of "
            f"batch_size, {no_refill}: use on_error='skip', which leaves the sample out"
        )
    return on_error
