"""Reads the upright size of a plain JPEG or PNG file from its first bytes, without Pillow.

A header is answered here only where Pillow would surely open the file and find the same. For all
else (rare markers, damage, orientation in unusual places) the answer is None and Pillow decides,
so no file is accepted that Pillow refuses. Opening a file with Pillow takes several times as long.

An EXIF block is a small TIFF file: a list of entries (tag, type, count, value or its offset).
Pillow reads all of it and drops what is damaged; here anything that is not as it should be is None,
and Pillow decides.
"""

import struct
from collections.abc import Iterator
from zlib import crc32

WIDTHS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 7: 1, 9: 4, 10: 8}  # bytes of a value, by its type
SHORT, RATIONAL = 3, 5
ORIENTATION = 0x0112
# Pillow looks at these when it opens a JPEG: orientation, unit and value of the resolution.
LOOKED_AT = {ORIENTATION: SHORT, 0x0128: SHORT, 0x011A: RATIONAL}
ENDIAN = {b"II*\0": "<", b"MM\0*": ">"}


def orientation(block: bytes) -> int | None:
    r"""Return 1 to 8 from a block that begins with "Exif\0\0"; None where Pillow must look.

    >>> short = (2).to_bytes(2) + bytes(2)
    >>> entry = b"\x01\x12" + SHORT.to_bytes(2) + (1).to_bytes(4) + (6).to_bytes(2) + bytes(2)
    >>> orientation(b"Exif\0\0MM\0*" + (8).to_bytes(4) + (1).to_bytes(2) + entry + bytes(4))
    6
    """
    tiff, order = block[6:], ENDIAN.get(block[6:10])
    if order is None or len(tiff) < 10:
        return None
    (start,) = struct.unpack_from(f"{order}I", tiff, 4)
    count = int.from_bytes(tiff[start : start + 2], "big" if order == ">" else "little")
    entries = tiff[start + 2 : start + 2 + 12 * count]
    if not 8 <= start <= len(tiff) - 6 - 12 * count:
        return None
    found, seen, stored = 1, set[int](), 0
    for tag, kind, number, value in struct.iter_unpack(f"{order}HHI4s", entries):
        # A type that TIFF lacks counts as too large for any file.
        size = number * WIDTHS.get(kind, 1 << 32)
        if size > 4:  # the value is elsewhere in the file, and this is its offset
            (at,) = struct.unpack(f"{order}I", value)
            stored += size
            if at + size > len(tiff) or stored > len(tiff):
                return None
        if tag in LOOKED_AT:
            # Given twice, or as another type, these are read in Pillow's own way.
            if tag in seen or (kind, number) != (LOOKED_AT[tag], 1):
                return None
            seen.add(tag)
        if tag == ORIENTATION:
            (found,) = struct.unpack_from(f"{order}H", value)
    return found if 1 <= found <= 8 else 1


FRAMES = {0xC0, 0xC1, 0xC2}  # baseline, extended, progressive
SKIPPED = {0xC4, 0xDD, 0xFE}  # Huffman tables, restart interval, comment
SCAN, TABLES, EXIF = 0xDA, 0xDB, 0xE1
PNG = b"\x89PNG\r\n\x1a\n"
# colour types of PNG and the depths that each may have
DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
# chunks that say nothing of size or orientation, and how long each is at least
HARMLESS = {b"gAMA": 4, b"sRGB": 1, b"pHYs": 9, b"PLTE": 0}
Size = tuple[int, int]


def plain_size(head: bytes) -> Size | None:
    """Return (width, height) after EXIF rotation; None where Pillow must look, or at more bytes.

    >>> plain_size(b"GIF89a") is None
    True
    """
    if head.startswith(b"\xff\xd8\xff"):
        return _jpeg_size(head)
    return _png_size(head) if head.startswith(PNG) else None


def _jpeg_size(head: bytes) -> Size | None:
    """Return the size in the segments before the first scan, where Pillow stops too."""
    size, turned = None, None
    for kind, body in _jpeg_segments(head):
        if kind == SCAN:
            # Orientations 5 to 8 lay the picture on its side.
            return size[::-1] if size and turned and turned >= 5 else size
        if kind in FRAMES and size is None:
            plain = (size := _frame(body)) is not None
        elif kind == EXIF and body.startswith(b"Exif\0\0") and turned is None:
            plain = (turned := orientation(body)) is not None
        else:
            # Also a second frame or EXIF block: Pillow would have to say which one counts.
            plain = _is_harmless(kind, body)
        if not plain:
            return None
    return None


def _jpeg_segments(head: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (marker, body) of each segment that is whole; end where Pillow must look."""
    at = 2
    while at + 4 <= len(head) and head[at] == 0xFF:
        kind, end = head[at + 1], at + 2 + int.from_bytes(head[at + 2 : at + 4])
        if end > len(head) or end < at + 4:
            return
        yield kind, head[at + 4 : end]
        at = end


def _is_harmless(kind: int, body: bytes) -> bool:
    """Return whether a segment says nothing of the size, and Pillow accepts it."""
    if kind == TABLES:  # quantization tables are to be whole, and of 8 bits each
        return len(body) % 65 == 0 and max(body[::65], default=0) < 16
    return kind in SKIPPED or (0xE0 <= kind <= 0xEF and not _matters(kind, body))


def _frame(body: bytes) -> Size | None:
    """Return the size in a start of frame that Pillow takes: 8 bits, 1, 3 or 4 components."""
    if len(body) < 6 or body[0] != 8 or body[5] not in (1, 3, 4) or len(body) != 6 + 3 * body[5]:
        return None
    return int.from_bytes(body[3:5]), int.from_bytes(body[1:3])


def _matters(kind: int, body: bytes) -> bool:
    """Return whether an application's segment may change Pillow's answer, or make it refuse.

    These do: several pictures in one file, an orientation in XMP, a second EXIF block, and segments
    that end before the fields that Pillow reads in them.
    """
    if kind == EXIF:
        return b"tiff:Orientation" in body or body.startswith(b"Exif\0\0")
    if kind == 0xE2:
        return body.startswith(b"MPF\0") or (body.startswith(b"ICC_PROFILE\0") and len(body) < 14)
    if kind == 0xED:
        return body[-6:-2] == b"8BIM"
    return len(body) < 7 and body.startswith((b"JFIF", b"Adobe"))


def _png_size(head: bytes) -> Size | None:
    """Walk the chunks up to the first pixels, where Pillow stops too, and check their sums."""
    at, size = len(PNG), None
    while at + 8 <= len(head):
        length, kind = struct.unpack_from(">I4s", head, at)
        if kind == b"IDAT":
            return size
        end = at + 8 + length
        # A chunk with a wrong sum, or cut off: Pillow may refuse the file.
        if crc32(head[at + 4 : end]) != int.from_bytes(head[end : end + 4]) or end + 4 > len(head):
            return None
        if kind == b"IHDR" and length == 13 and size is None:
            width, height, depth, colour, _, unknown, _ = struct.unpack_from(">II5B", head, at + 8)
            if depth not in DEPTHS.get(colour, ()) or unknown:
                return None
            size = width, height
        # Any other chunk may change the size or orientation, such as eXIf, or a second IHDR.
        elif length < HARMLESS.get(kind, length + 1):
            return None
        at = end + 4
    return None
