"""How OpenRLHF and TRL deal rollouts to ranks, their rules restated for `make bench`."""

import numpy as np

from counterpoise.balancer.planning.kernels.arrays import Int64

Parts = list[list[int]]


def deal_as_openrlhf(tokens: Int64, ranks: int) -> Parts:
    """Deal rollouts by OpenRLHF's rule: rows of like lengths, every second one the other way round.

    OpenRLHF 0.11.2, trainer/ppo_utils/experience.py, balance_experiences: sorted from the longest
    on and cut into rows of `ranks`; the longest row, then the shortest in reverse, and so on
    inwards.

    >>> deal_as_openrlhf(np.array([8, 7, 6, 5, 4, 3, 2, 1]), ranks=2)
    [[0, 7, 2, 5], [1, 6, 3, 4]]
    """
    order = np.argsort(-tokens, kind="stable").tolist()
    rows = [order[begin : begin + ranks] for begin in range(0, len(order), ranks)]
    half = len(rows) // 2
    parts: Parts = [[] for _ in range(ranks)]
    for number in range(len(rows) - half):
        pair = rows[number : number + 1] if number < half else []
        # the shortest rows from the end; with an odd number of rows the middle one comes last
        last = rows[-1 - number] if number < half else rows[half]
        for row in (*pair, last[::-1]):
            for rank, item in enumerate(row):
                parts[rank].append(item)
    return parts


def count_first_fit(tokens: Int64, budget: int) -> int:
    """Return how many microbatches OpenRLHF gives a rank: as many as first fit needs.

    OpenRLHF 0.11.2, utils/seqlen_balancing.py, get_minimum_num_micro_batch_size. It then deals by
    verl's partition, which does not look at the budget.

    >>> count_first_fit(np.array([5, 3, 7, 2, 6]), budget=10)
    3
    """
    filled: list[int] = []
    for length in tokens.tolist():
        place = next((k for k, sum_ in enumerate(filled) if sum_ + length <= budget), None)
        if place is None:
            filled.append(length)
        else:
            filled[place] += length
    return len(filled)


def deal_as_trl(items: int, ranks: int) -> Parts:
    """Deal rollouts by TRL's rule: a rank keeps those that it made, as many as every other.

    TRL 1.16, GRPOTrainer: prompts are dealt in blocks; those that fill no batch are left out.

    >>> deal_as_trl(7, ranks=3)
    [[0, 1], [2, 3], [4, 5]]
    """
    size = items // ranks
    return [list(range(rank * size, (rank + 1) * size)) for rank in range(ranks)]


def cut_as_trl(items: list[int], microbatches: int, seed: int) -> Parts:
    """Cut a rank's rollouts by TRL's rule: shuffled, then pieces of equal counts.

    TRL 1.16, trainer/utils.py, shuffle_sequence_dict and split_tensor_dict: what is left of the
    division is in no piece.

    >>> sorted(len(piece) for piece in cut_as_trl([4, 5, 6, 7, 8], microbatches=2, seed=0))
    [2, 2]
    """
    shuffled = np.random.default_rng(seed).permutation(items).tolist()
    size = len(items) // microbatches
    return [shuffled[k * size : (k + 1) * size] for k in range(microbatches)]
