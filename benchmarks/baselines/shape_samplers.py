"""Two published samplers of one shape a batch, their rules restated so that a bench can compare.

Both return the batches of each rank as a list of steps, and a step as each rank's samples.
"""

from itertools import pairwise

import numpy as np

from counterpoise.balancer.planning.kernels.arrays import Int64

Steps = list[list[list[int]]]


def automodel_sequential(keys: Int64, ranks: int, size: int, seed: int) -> Steps:
    """Go through one shape after another, on all ranks alike, and drop what fills no batch.

    NVIDIA NeMo Automodel, nemo_automodel/components/datasets/diffusion/sampler.py,
    SequentialBucketSampler with its defaults (2026). A shape's samples are filled up to a multiple
    of ranks by repeating the first, and rank r gets each ranks-th from r on.

    >>> automodel_sequential(np.array([7, 7, 7, 7, 7, 8]), ranks=2, size=2, seed=0)
    [[[2, 3], [4, 0]]]
    """
    draw, steps = np.random.default_rng(seed), Steps()
    for key in draw.permutation(np.unique(keys)).tolist():
        indices = draw.permutation(np.flatnonzero(keys == key))
        filled = np.resize(indices, -(-len(indices) // ranks) * ranks).reshape(-1, ranks).T
        for begin in range(0, filled.shape[1] - size + 1, size):
            steps.append(filled[:, begin : begin + size].tolist())
    return steps


def diffusers_shuffled(keys: Int64, ranks: int, size: int, seed: int) -> Steps:
    """Cut each shape into batches, shuffle all, and deal them to ranks in turns.

    diffusers, examples/dreambooth/train_dreambooth_lora_flux2.py, BucketBatchSampler (2026): the
    last batch of a shape may be smaller. Dealt as Accelerate does with even_batches: where ranks
    have no batch in the last step, the first batches come again.

    >>> diffusers_shuffled(np.array([7, 7, 7, 8, 8]), ranks=2, size=2, seed=0)
    [[[2, 0], [4, 3]], [[1], [2, 0]]]
    """
    draw, batches = np.random.default_rng(seed), list[list[int]]()
    for key in np.unique(keys).tolist():
        indices = draw.permutation(np.flatnonzero(keys == key)).tolist()
        edges = [*range(0, len(indices), size), len(indices)]
        batches += [indices[begin:end] for begin, end in pairwise(edges)]
    order = draw.permutation(len(batches))
    dealt = np.resize(order, -(-len(order) // ranks) * ranks).reshape(-1, ranks).tolist()
    return [[batches[number] for number in row] for row in dealt]
