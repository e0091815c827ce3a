"""Makes requests of ranges: neighbours as one, long ones in parts that are read at once."""

from collections.abc import Iterable

# A request takes as long as some 100 KB of its answer: to read over a gap is sooner done.
GAP = 1 << 16
MOST = 4 << 20
Range = tuple[int, int]


def joined(ranges: Iterable[Range], gap: int = GAP, most: int = MOST) -> list[Range]:
    """Return requests (start, end), sorted, that cover ranges, each of at most `most` bytes.

    >>> joined([(0, 10), (12, 20), (100, 125)], gap=4, most=20)
    [(0, 20), (100, 120), (120, 125)]
    """
    found = list[Range]()
    for start, end in sorted(ranges):
        first, last = found[-1] if found else (0, -gap - 1)
        if start - last <= gap and max(end, last) - first <= most:
            found[-1] = first, max(end, last)
        else:
            found += [(at, min(at + most, end)) for at in range(start, end, most)]
    return found


def cut(wanted: Range, pieces: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the bytes of a range from pieces (offset, bytes) that cover it.

    >>> cut((3, 8), [(0, b"01234"), (5, b"56789")])
    b'34567'
    """
    at, end = wanted
    parts = list[bytes]()
    for offset, data in sorted(pieces, key=lambda piece: piece[0]):
        if offset <= at < offset + len(data) and at < end:
            parts.append(data[at - offset : end - offset])
            at += len(parts[-1])
    if at < end:
        raise ValueError(f"no piece holds byte {at} of {wanted}")
    return parts[0] if len(parts) == 1 else b"".join(parts)
