"""Reads a picture's orientation from a well-formed EXIF block, without Pillow.

An EXIF block is a small TIFF file: a list of entries (tag, type, count, value or its offset).
Pillow reads all of it and drops what is damaged; here anything that is not as it should be is None,
and Pillow decides.
"""

import struct

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
