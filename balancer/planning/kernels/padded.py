"""The loops of padded work: how far a microbatch reaches, and which row it is best in.

Samples are sorted by size, largest first. A microbatch costs count x its largest size, so with a
most that it may cost, the best it can do is to begin with the largest sample left and take as many
as fit: whatever else it held could be exchanged for those without making any microbatch larger. A
*row* is the microbatches that run side by side, one on each rank; the step's time is the sum of the
rows' tops, the most that a microbatch of the row costs. `stop[i]` is where a microbatch that begins
at sample i must end because of budgets; it never falls.
"""

import numpy as np

from . import cython

if not cython.compiled:
    from .arrays import Flag, Int, Int64, Matrix, Vector


def stops(columns: Matrix, padded: Vector, budgets: Vector) -> Int64:
    """Return int64 (n,): for each first sample the end of the longest microbatch within budgets.

    columns (n, resources) in the order of the samples; padded (resources,) is 1 where a microbatch
    costs count x largest, budgets (resources,). A sample over budget by itself is alone.
    """
    samples, resources = columns.shape[0], columns.shape[1]
    result = np.empty(samples, dtype=np.int64)
    ends: Vector = result
    largest: Vector = np.empty(resources, dtype=np.int64)
    sums: Vector = np.empty(resources, dtype=np.int64)
    fits: Flag
    with cython.nogil:
        for begin in range(samples):
            for r in range(resources):
                largest[r] = sums[r] = 0
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
            ends[begin] = max(end, begin + 1)
    return result


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def count_cut(sizes: Vector, stop: Vector, most: Int, limit: Int) -> Int:
    """Return how many microbatches of at most `most` hold all samples; limit + 1: more than that.

    sizes (n,) descend; `most` is at least the first of them.
    """
    begin: Int = 0
    groups: Int = 0
    while begin < sizes.shape[0]:
        if groups == limit:
            return limit + 1
        begin = min(begin + most // sizes[begin], stop[begin])
        groups += 1
    return groups


def least_top(sizes: Vector, stop: Vector, groups: Int) -> int:
    """Return the least cost that the largest of `groups` microbatches can have; -1: they cannot.

    By binary search, from what the work itself needs; exact (see the module's text).
    """
    low: Int
    high: Int
    enough: Int
    whole: Int = 0
    if sizes.shape[0] == 0:
        return 0
    with cython.nogil:
        for i in range(sizes.shape[0]):
            whole += sizes[i]
        low = max(sizes[0], (whole + groups - 1) // groups) - 1
        high, enough = low + 1, sizes[0] * sizes.shape[0]
        while count_cut(sizes, stop, high, groups) > groups and high < enough:
            low, high = high, min(2 * high, enough)
        if count_cut(sizes, stop, high, groups) > groups:
            high = -1
        while high - low > 1:
            middle = (low + high) // 2
            if count_cut(sizes, stop, middle, groups) <= groups:
                high = middle
            else:
                low = middle
    return high


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def fill_ends(sizes: Vector, stop: Vector, most: Int, ends: Matrix, row: Int) -> cython.void:
    """Fill a row of ends (2, n + 1): where a microbatch of at most `most` from each sample ends.

    sizes (n,) descend.
    """
    samples: Int = sizes.shape[0]
    count: Int = most // sizes[0] if samples > 0 else 0
    for i in range(samples):
        while (count + 1) * sizes[i] <= most:  # cheaper than a division for each
            count += 1
        ends[row, i] = min(stop[i], i + count)
    ends[row, samples] = samples


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def holds(ranks: Int, ends: Matrix, far: Vector) -> Flag:
    """Return whether two rows hold all samples, by their microbatches' ends.

    ends (2, n + 1): `fill_ends` of each row's top. far (ranks + 1,) is room for what `fill_far`
    keeps of one diagonal: its cells do not wait for each other, so this takes two thirds of the
    time.
    """
    far[0] = 0
    for whole in range(1, ranks + 1):
        far[whole] = ends[0, far[whole - 1]]
        for a in range(whole - 1, 0, -1):
            far[a] = max(ends[0, far[a - 1]], ends[1, far[a]])
        far[0] = ends[1, far[0]]
    for whole in range(ranks + 1, 2 * ranks + 1):
        for a in range(ranks, whole - ranks - 1, -1):
            far[a] = max(ends[0, far[a - 1]], ends[1, far[a]])
    is_all: Flag = far[ranks] == ends.shape[1] - 1
    return is_all


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def fill_far(ranks: Int, ends: Matrix, far: Matrix) -> cython.void:
    """Fill far (ranks + 1, ranks + 1): how many samples two rows' microbatches hold at most.

    ends (2, n + 1): `fill_ends` of each row's top; far[a, b] is for a microbatches of the first row
    and b of the second. Exact: to be farther with the same microbatches is never worse.
    """
    far[0, 0] = 0
    for b in range(1, ranks + 1):
        far[0, b] = ends[1, far[0, b - 1]]
    for a in range(1, ranks + 1):
        far[a, 0] = ends[0, far[a - 1, 0]]
        for b in range(1, ranks + 1):
            far[a, b] = max(ends[1, far[a, b - 1]], ends[0, far[a - 1, b]])


def best_tops(
    sizes: Vector, stop: Vector, ranks: Int, first: Int, second: Int, points: Int
) -> tuple[int, int]:
    """Return the tops of two rows that hold all samples, of a lower sum if one is found.

    `first` and `second` hold them already. `points` tops of the higher row are tried, from the
    least possible one on; for each the least of the lower row is searched, to a part in 2**9.
    """
    samples = sizes.shape[0]
    ends: Matrix = np.empty((2, samples + 1), dtype=np.int64)
    far: Vector = np.empty(ranks + 1, dtype=np.int64)
    whole: Int = 0
    high: Int
    low: Int
    with cython.nogil:
        least = sizes[samples - 1]
        for i in range(samples):
            whole += sizes[i]
        low = max(sizes[0], (whole + 2 * ranks - 1) // (2 * ranks))
        high = first + second - least
        for point in range(points + 1):
            top: Int = low + (high - low) * point // points
            below: Int = min(top, first + second - top - 1)
            if below < least:
                break
            fill_ends(sizes, stop, top, ends, 0)
            fill_ends(sizes, stop, below, ends, 1)
            if not holds(ranks, ends, far):
                continue
            bottom: Int = max(least - 1, (whole - top * ranks) // ranks - 1)
            while below - bottom > max(1, below >> 9):
                middle = (bottom + below) // 2
                fill_ends(sizes, stop, middle, ends, 1)
                if holds(ranks, ends, far):
                    below = middle
                else:
                    bottom = middle
            first, second = top, below
    return first, second


def cut_in_two(
    sizes: Vector, stop: Vector, ranks: Int, first: Int, second: Int, row_of: Vector
) -> None:
    """Fill row_of (n,) with 0 and 1: the row of each sample, by tops that hold all of them."""
    ends: Matrix = np.empty((2, sizes.shape[0] + 1), dtype=np.int64)
    far: Matrix = np.empty((ranks + 1, ranks + 1), dtype=np.int64)
    a: Int = ranks
    b: Int = ranks
    row: Int
    end: Int = sizes.shape[0]
    with cython.nogil:
        fill_ends(sizes, stop, first, ends, 0)
        fill_ends(sizes, stop, second, ends, 1)
        fill_far(ranks, ends, far)
        while end > 0:
            # Microbatches at the end that hold nothing are left out first.
            if b > 0 and ends[1, far[a, b - 1]] >= end:
                b -= 1
                row = 1
            else:
                a -= 1
                row = 0
            begin = far[a, b]
            for i in range(begin, end):
                row_of[i] = row
            end = min(end, begin)


def cut(sizes: Vector, stop: Vector, most: Int, group_of: Vector) -> int:
    """Fill group_of (n,) with microbatches of at most `most`; return their number."""
    samples: Int = sizes.shape[0]
    begin: Int = 0
    groups: Int = 0
    with cython.nogil:
        while begin < samples:
            end: Int = min(samples, min(begin + most // sizes[begin], stop[begin]))
            for i in range(begin, end):
                group_of[i] = groups
            begin = end
            groups += 1
    return groups


def padded_tops(sizes: Vector, group_of: Vector, groups: Int) -> Int64:
    """Return int64 (groups,): count x largest of each microbatch; sizes (n,) descend."""
    result = np.zeros(groups, dtype=np.int64)
    largest: Vector = result
    counts: Vector = np.zeros(groups, dtype=np.int64)
    with cython.nogil:
        for i in range(sizes.shape[0]):
            group = group_of[i]
            if counts[group] == 0:
                largest[group] = sizes[i]
            counts[group] += 1
        for number in range(groups):
            largest[number] *= counts[number]
    return result


def fill_empty(group_of: Vector, groups: Int, ranks: Int) -> None:
    """Change group_of (n,) so that no microbatch is empty, if there are samples enough.

    The one of the same row with most samples gives the smaller half; where all of a row are empty,
    one that can spare a sample gives the smallest.
    """
    samples = group_of.shape[0]
    counts: Vector = np.zeros(groups, dtype=np.int64)
    giver: Int
    with cython.nogil:
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
            missing: Int = counts[giver] // 2
            if counts[giver] < 2:  # none in the row can spare one: any that can, in any row
                giver, missing = -1, 1
            # From the end: samples descend, so the smallest are given.
            for i in range(samples - 1, -1, -1):
                if missing == 0:
                    break
                group_of_sample = group_of[i]
                if group_of_sample == giver or (giver < 0 and counts[group_of_sample] > 1):
                    group_of[i] = empty
                    counts[group_of_sample] -= 1
                    counts[empty] += 1
                    missing -= 1
            if missing > 0:  # there are fewer samples than microbatches
                break
