"""verl's partitioning functions answered by `cp.partition` in each process that imports verl.

VERL_USE_EXTERNAL_MODULES=tests.programs.verl.answers; processes append a line to the file CALLS for
each call. verl's `rearrange_micro_batches` stays, and calls ours.
"""

import os
from pathlib import Path

from verl.utils import seqlen_balancing

import counterpoise as cp


def _note(name):
    with Path(os.environ["CALLS"]).open("a") as calls:
        calls.write(f"{name} {os.getpid()}\n")


def karmarkar_karp(seqlen_list, k_partitions, equal_size):
    """Deal any costs."""
    _note("karmarkar_karp")
    if equal_size:
        return cp.partition(seqlen_list, k_partitions, remainder="error").ranks
    return cp.partition(seqlen_list, k_partitions, counts="free").ranks


def get_seqlen_balanced_partitions(seqlen_list, k_partitions, equal_size):
    """Deal any costs; indices of a rank are sorted."""
    return [sorted(part) for part in karmarkar_karp(seqlen_list, k_partitions, equal_size)]


def get_group_balanced_partitions(seqlen_list, uid_list, k_partitions):
    """Deal groups, as many to each rank."""
    _note("get_group_balanced_partitions")
    work = {"tokens": 24576, "attention_pairs": 1}
    dealt = cp.partition(seqlen_list, k_partitions, remainder="error", work=work, groups=uid_list)
    return [sorted(part) for part in dealt.ranks]


for _answer in (karmarkar_karp, get_seqlen_balanced_partitions, get_group_balanced_partitions):
    setattr(seqlen_balancing, _answer.__name__, _answer)
