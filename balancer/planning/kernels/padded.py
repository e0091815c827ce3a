"""The compiled loops of padded work: how far a microbatch reaches, and which row it is best in.

Samples are sorted by size, largest first. A microbatch costs count x its largest size, so with a
most that it may cost, the best it can do is to begin with the largest sample left and take as many
as fit: whatever else it held could be exchanged for those without making any microbatch larger. A
*row* is the microbatches that run side by side, one on each rank; the step's time is the sum of the
rows' tops, the most that a microbatch of the row costs. `stop[i]` is where a microbatch that begins
at sample i must end because of budgets; it never falls.
"""

import numpy as np

from .arrays import Int64, UInt64
from .jit import compiled


@compiled
def stops(columns: Int64, padded: Int64, budgets: Int64) -> Int64:
    """Return int64 (n,): for each first sample the end of the longest microbatch within budgets.

    columns (n, resources) in the order of the samples; padded (resources,) is 1 where a microbatch
    costs count x largest, budgets (resources,). A sample over budget by itself is alone.
    """
    samples, resources = columns.shape
    found = np.empty(samples, dtype=np.int64)
    for begin in range(samples):
        largest = np.zeros(resources, dtype=np.int64)
        sums = np.zeros(resources, dtype=np.int64)
        end = begin
        while end < samples:
            fits = True
            for r in range(resources):
                largest[r] = max(largest[r], columns[end, r])
                sums[r] += columns[end, r]
                load = (end - begin + 1) * largest[r] if padded[r] else sums[r]
                fits = fits and load <= budgets[r]
            if not fits:
                break
            end += 1
        found[begin] = max(end, begin + 1)
    return found


@compiled
def count_groups(sizes: Int64, stop: Int64, most: int, limit: int) -> int:
    """Return how many microbatches of at most `most` hold all samples; limit + 1: more than that.

    sizes (n,) descend; `most` is at least the first of them.
    """
    begin, groups = 0, 0
    while begin < len(sizes):
        if groups == limit:
            return limit + 1
        begin = min(begin + most // sizes[begin], stop[begin])
        groups += 1
    return groups


@compiled
def least_top(sizes: Int64, stop: Int64, groups: int) -> int:
    """Return the least cost that the largest of `groups` microbatches can have; -1: they cannot.

    By binary search, from what the work itself needs; exact (see the module's text).
    """
    if not len(sizes):
        return 0
    low = max(sizes[0], -(-sizes.sum() // groups)) - 1
    high, enough = low + 1, sizes[0] * len(sizes)
    while count_groups(sizes, stop, high, groups) > groups:
        if high >= enough:
            return -1
        low, high = high, min(2 * high, enough)
    while high - low > 1:
        middle = (low + high) // 2
        if count_groups(sizes, stop, middle, groups) <= groups:
            high = middle
        else:
            low = middle
    return int(high)


@compiled
def fill_ends(sizes: Int64, stop: Int64, most: int, ends: UInt64) -> None:
    """Fill ends (n + 1,): where a microbatch of at most `most` ends that begins at each sample.

    sizes (n,) descend; ends are unsigned, as `holds` looks them up.
    """
    count = most // sizes[0] if len(sizes) else 0
    for i in range(len(sizes)):
        while (count + 1) * sizes[i] <= most:  # cheaper than a division for each
            count += 1
        ends[i] = min(stop[i], i + count)
    ends[len(sizes)] = len(sizes)


@compiled
def holds(ranks: int, ends: UInt64, far: UInt64) -> bool:
    """Return whether two rows hold all samples, by their microbatches' ends.

    ends (2, n + 1): `fill_ends` of each row's top. far (ranks + 1,) is room for what `fill_far`
    keeps of one diagonal: its cells do not wait for each other, and unsigned numbers need no look
    at their sign as indices, so this takes two thirds of the time.
    """
    of_first, of_second = ends[0], ends[1]
    far[0] = 0
    for whole in range(1, ranks + 1):
        far[whole] = of_first[far[whole - 1]]
        for a in range(whole - 1, 0, -1):
            far[a] = max(of_first[far[a - 1]], of_second[far[a]])
        far[0] = of_second[far[0]]
    for whole in range(ranks + 1, 2 * ranks + 1):
        for a in range(ranks, whole - ranks - 1, -1):
            far[a] = max(of_first[far[a - 1]], of_second[far[a]])
    return bool(far[ranks] == ends.shape[1] - 1)


@compiled
def fill_far(ranks: int, ends: UInt64, far: UInt64) -> None:
    """Fill far (ranks + 1, ranks + 1): how many samples two rows' microbatches hold at most.

    ends (2, n + 1): `fill_ends` of each row's top; far[a, b] is for a microbatches of the first row
    and b of the second. Exact: to be farther with the same microbatches is never worse.
    """
    of_first, of_second = ends[0], ends[1]
    far[0, 0] = 0
    for b in range(1, ranks + 1):
        far[0, b] = of_second[far[0, b - 1]]
    for a in range(1, ranks + 1):
        far[a, 0] = of_first[far[a - 1, 0]]
        for b in range(1, ranks + 1):
            far[a, b] = max(of_second[far[a, b - 1]], of_first[far[a - 1, b]])


@compiled
def best_tops(
    sizes: Int64, stop: Int64, ranks: int, first: int, second: int, points: int
) -> tuple[int, int]:
    """Return the tops of two rows that hold all samples, of a lower sum if one is found.

    `first` and `second` hold them already. `points` tops of the higher row are tried, from the
    least possible one on; for each the least of the lower row is searched, to a part in 2**9.
    """
    samples = len(sizes)
    ends = np.empty((2, samples + 1), dtype=np.uint64)
    far = np.empty(ranks + 1, dtype=np.uint64)
    whole, least = np.int64(0), sizes[samples - 1]
    for size in sizes:
        whole += size
    low = max(sizes[0], -(-whole // (2 * ranks)))
    high = first + second - least
    for point in range(points + 1):
        top = low + (high - low) * point // points
        below = min(top, first + second - top - 1)
        if below < least:
            break
        fill_ends(sizes, stop, top, ends[0])
        fill_ends(sizes, stop, below, ends[1])
        if not holds(ranks, ends, far):
            continue
        bottom = max(least - 1, (whole - top * ranks) // ranks - 1)
        while below - bottom > max(1, below >> 9):
            middle = (bottom + below) // 2
            fill_ends(sizes, stop, middle, ends[1])
            if holds(ranks, ends, far):
                below = middle
            else:
                bottom = middle
        first, second = top, below
    return first, second


@compiled
def cut_in_two(
    sizes: Int64, stop: Int64, ranks: int, first: int, second: int, row_of: Int64
) -> None:
    """Fill row_of (n,) with 0 and 1: the row of each sample, by tops that hold all of them."""
    samples = len(sizes)
    ends = np.empty((2, samples + 1), dtype=np.uint64)
    far = np.empty((ranks + 1, ranks + 1), dtype=np.uint64)
    fill_ends(sizes, stop, first, ends[0])
    fill_ends(sizes, stop, second, ends[1])
    fill_far(ranks, ends, far)
    a, b, end = ranks, ranks, samples
    while end > 0:
        # Microbatches at the end that hold nothing are left out first.
        if b > 0 and np.int64(ends[1, far[a, b - 1]]) >= end:
            b -= 1
            row = 1
        else:
            a -= 1
            row = 0
        begin = np.int64(far[a, b])
        for i in range(begin, end):
            row_of[i] = row
        end = min(end, int(begin))


@compiled
def cut(sizes: Int64, stop: Int64, most: int, group_of: Int64) -> int:
    """Fill group_of (n,) with microbatches of at most `most`; return their number."""
    begin, groups = 0, 0
    while begin < len(sizes):
        end = min(len(sizes), min(begin + most // sizes[begin], stop[begin]))
        for i in range(begin, end):
            group_of[i] = groups
        begin = end
        groups += 1
    return groups


@compiled
def padded_tops(sizes: Int64, group_of: Int64, groups: int) -> Int64:
    """Return int64 (groups,): count x largest of each microbatch; sizes (n,) descend."""
    counts = np.zeros(groups, dtype=np.int64)
    largest = np.zeros(groups, dtype=np.int64)
    for i in range(len(sizes)):
        group = group_of[i]
        if counts[group] == 0:
            largest[group] = sizes[i]
        counts[group] += 1
    for group in range(groups):
        largest[group] *= counts[group]
    return largest


@compiled
def fill_empty(group_of: Int64, groups: int, ranks: int) -> None:
    """Change group_of (n,) so that no microbatch is empty, if there are samples enough.

    The one of the same row with most samples gives the smaller half; where all of a row are empty,
    one that can spare a sample gives the smallest.
    """
    samples = len(group_of)
    counts = np.zeros(groups, dtype=np.int64)
    for i in range(samples):
        counts[group_of[i]] += 1
    for empty in range(groups):
        if counts[empty] > 0:
            continue
        row = empty // ranks * ranks
        giver = row  # the first of those with most samples
        for group in range(row, min(row + ranks, groups)):
            if counts[group] > counts[giver]:
                giver = group
        wanted = counts[giver] // 2
        if counts[giver] < 2:  # nobody in the row can spare one: whoever can, in any row
            giver, wanted = -1, 1
        # From the end: samples descend, so the smallest are given.
        for i in range(samples - 1, -1, -1):
            if wanted == 0:
                break
            group = group_of[i]
            if group == giver or (giver < 0 and counts[group] > 1):
                group_of[i] = empty
                counts[group] -= 1
                counts[empty] += 1
                wanted -= 1
        if wanted > 0:  # there are fewer samples than microbatches
            break
