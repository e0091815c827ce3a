"""Measures of an order's randomness, and the bias of a rank."""

import numpy as np

from counterpoise.balancer.planning.kernels.arrays import Int64


def kinds(lengths: Int64, sources: Int64) -> Int64:
    """Return each sample's cell of the histogram source x length quartile.

    >>> kinds(np.array([1, 2, 3, 4]), np.array([0, 0, 1, 1])).tolist()
    [0, 1, 6, 7]
    """
    quartile = np.searchsorted(np.quantile(lengths, [0.25, 0.5, 0.75]), lengths, side="left")
    return sources.astype(np.int64) * 4 + quartile


def chi_square(cells: Int64, step_of: Int64) -> tuple[float, float]:
    """Return chi2 / dof of the steps' histograms against the whole, and its standard error.

    cells: `kinds` of the samples; step_of: each one's step (-1: in none). A plain shuffle gives 1,
    clustered steps give more, stratified ones less.
    """
    cells, step_of = cells[step_of >= 0], step_of[step_of >= 0]
    steps = int(step_of.max(initial=-1)) + 1
    whole = np.bincount(cells)
    used = np.flatnonzero(whole)
    if len(used) < 2 or steps < 2:
        return 1.0, 0.0
    table = np.bincount(step_of * len(whole) + cells, minlength=steps * len(whole))
    seen = table.reshape(steps, len(whole))[:, used]
    wanted = seen.sum(axis=1, keepdims=True) * (whole[used] / whole.sum())
    values = ((seen - wanted) ** 2 / np.maximum(wanted, 1e-12)).sum(axis=1) / (len(used) - 1)
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(steps))


def drift(lengths: Int64, step_of: Int64) -> float:
    """Return the correlation of a step's number with its mean sample length; 0 is no trend."""
    lengths, step_of = lengths[step_of >= 0], step_of[step_of >= 0]
    count = np.bincount(step_of)
    mean = np.bincount(step_of, weights=lengths) / np.maximum(count, 1)
    if len(mean) < 3 or not mean.std():
        return 0.0
    return float(np.corrcoef(np.arange(len(mean)), mean)[0, 1])


def rank_bias(loads: Int64) -> float:
    """Return the largest relative deviation of a rank's mean load: loads (steps, ranks).

    >>> rank_bias(np.array([[3, 1], [1, 3], [5, 3]]))
    0.125
    """
    means = loads.mean(axis=0)
    return float(np.abs(means / means.mean() - 1).max()) if means.any() else 0.0
