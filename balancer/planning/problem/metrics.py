"""Metrics of a plan's balance: plain functions on arrays of loads.

Loads are float or integer arrays (steps, ranks): the work of the ranks side by side, a row for
every point at which they wait for each other.
"""

from ..kernels.arrays import Int64

TILE_TOKENS = 307  # a tile's encoder work in tokens of the language model


def efficiency(encoder: Int64, llm: Int64) -> float:
    """Return work over time when ranks wait after the encoder and after the LLM in every row.

    encoder and llm (steps, ranks) in one unit of time: sum of all / (ranks x sum of both maxima).

    >>> import numpy as np
    >>> efficiency(np.array([[2, 1]]), np.array([[1, 2]]))
    0.75
    """
    time = encoder.shape[1] * float(encoder.max(axis=1).sum() + llm.max(axis=1).sum())
    return float(encoder.sum() + llm.sum()) / time if time else 1.0
