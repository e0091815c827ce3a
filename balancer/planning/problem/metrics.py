"""Metrics of a plan's balance: plain functions on arrays of loads.

Loads are float or integer arrays (steps, ranks): the work of the ranks side by side, a row for
every point at which they wait for each other.
"""

import numpy as np

from ..kernels.arrays import Int64

TILE_TOKENS = 307  # a tile's encoder work in tokens of the language model


def dist_ratio(loads: Int64) -> float:
    """Return the mean share of waiting over rows (steps, ranks): 1 - mean / max of each row.

    OmniBal (2025), §4.1, equation 2; rows without any load count as even.

    >>> dist_ratio(np.array([[4, 2], [3, 3]]))
    0.125
    """
    if not len(loads):
        return 0.0
    top = loads.max(axis=1)
    return float(np.mean(1 - loads.mean(axis=1) / np.maximum(top, 1) - (top == 0)))


def efficiency(encoder: Int64, llm: Int64) -> float:
    """Return work over time when ranks wait after the encoder and after the LLM in every row.

    encoder and llm (steps, ranks) in one unit of time: sum of all / (ranks x sum of both maxima).

    >>> efficiency(np.array([[2, 1]]), np.array([[1, 2]]))
    0.75
    """
    time = encoder.shape[1] * float(encoder.max(axis=1).sum() + llm.max(axis=1).sum())
    return float(encoder.sum() + llm.sum()) / time if time else 1.0
