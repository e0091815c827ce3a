"""Reads the size of a plain JPEG or PNG file from its first bytes, without Pillow.

A header is answered here only where Pillow would surely open the file and find the same. For all
else (EXIF, rare markers, damage) the answer is None and Pillow decides, so no file is accepted that
Pillow refuses. Opening a file with Pillow takes several times as long.
"""

import struct
from zlib import crc32

FRAMES = {0xC0, 0xC1, 0xC2}  # baseline, extended, progressive
SKIPPED = {0xC4, 0xDD, 0xFE}  # Huffman tables, restart interval, comment
SCAN, TABLES = 0xDA, 0xDB
PNG = b"\x89PNG\r\n\x1a\n"
# colour types of PNG and the depths that each may have
DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
# chunks that say nothing of size or orientation, and how long each is at least
HARMLESS = {b"gAMA": 4, b"sRGB": 1, b"pHYs": 9, b"PLTE": 0}
Size = tuple[int, int]


def plain_size(head: bytes) -> Size | None:
    """Return (width, height); None where Pillow must look, or at more bytes.

    >>> plain_size(b"GIF89a") is None
    True
    """
    if head.startswith(b"\xff\xd8\xff"):
        return _jpeg_size(head)
    return _png_size(head) if head.startswith(PNG) else None


def _jpeg_size(head: bytes) -> Size | None:
    """Return the size in the segments before the first scan, where Pillow stops too."""
    at, size = 2, None
    while at + 4 <= len(head) and head[at] == 0xFF:
        kind, end = head[at + 1], at + 2 + int.from_bytes(head[at + 2 : at + 4])
        body = head[at + 4 : end]
        if end > len(head) or end < at + 4:
            return None
        if kind == SCAN:
            return size
        if kind in FRAMES and size is None:
            # Pillow takes 8 bits, 1, 3 or 4 components.
            parts = body[5] if len(body) > 5 else 0
            if body[:1] != b"\x08" or parts not in (1, 3, 4) or len(body) != 6 + 3 * parts:
                return None
            size = int.from_bytes(body[3:5]), int.from_bytes(body[1:3])
        elif not _is_harmless(kind, body):
            return None
        at = end
    return None


def _is_harmless(kind: int, body: bytes) -> bool:
    """Return whether a segment says nothing of size and orientation, and Pillow accepts it.

    Not so: EXIF, several pictures in one file, an orientation in XMP, and segments that end before
    the fields that Pillow reads in them.
    """
    if kind == TABLES:  # quantization tables are to be whole, and of 8 bits each
        return len(body) % 65 == 0 and max(body[::65], default=0) < 16
    if kind == 0xE1:
        return b"tiff:Orientation" not in body and not body.startswith(b"Exif\0\0")
    if kind == 0xE2:
        is_short = body.startswith(b"ICC_PROFILE\0") and len(body) < 14
        return not (is_short or body.startswith(b"MPF\0"))
    if kind == 0xED:
        return body[-6:-2] != b"8BIM"
    if 0xE0 <= kind <= 0xEF:
        return len(body) >= 7 or not body.startswith((b"JFIF", b"Adobe"))
    return kind in SKIPPED


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
