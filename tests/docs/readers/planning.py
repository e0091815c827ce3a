"""What a reader of docs/planning.md has: a data set and its costs."""

import numpy as np

_COUNT = 564
_random = np.random.default_rng(0)
tiles = _random.integers(0, 6, _COUNT)
tokens = 200 + 256 * tiles
costs = np.stack([tiles, tokens], axis=1)
dataset = list(range(_COUNT))
