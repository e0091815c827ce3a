"""What a reader of planning.md has: a data set and its costs."""

import numpy as np

_COUNT = 564
tiles = np.random.default_rng(0).integers(0, 6, _COUNT)
tokens = 200 + 256 * tiles
dataset = list(range(_COUNT))
