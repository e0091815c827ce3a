"""The size of an epoch's last step, where too few samples are left for a whole one."""

from .config import PlanConfig


def last_rows(config: PlanConfig, samples: int) -> int:
    """Return the microbatches of each rank in a last step of `samples` samples."""
    rows = config.least_microbatches // config.ranks
    return rows if config.last_step == "whole" else max(1, min(rows, samples // config.ranks))


def last_kept(config: PlanConfig, samples: int) -> int:
    """Return how many of the `samples` samples of an epoch's last step are in it.

    >>> last_kept(PlanConfig(4, 64, 4, ("n",), (None,), last_step="even"), 23)
    16
    """
    if not config.keeps_last(samples):
        return 0
    whole = config.ranks * last_rows(config, samples)
    return samples - samples % whole if config.last_step == "even" else samples


def microbatches_of(config: PlanConfig, samples: int) -> int:
    """Return a rank's microbatches in an epoch of `samples` samples, in mode "exact".

    >>> microbatches_of(PlanConfig(4, 64, 4, ("n",), (None,), last_step="even"), 64 + 7)
    5
    """
    whole, rest = divmod(samples, config.samples_per_step)
    last = last_rows(config, rest) if config.keeps_last(rest) else 0
    return whole * config.least_microbatches // config.ranks + last
