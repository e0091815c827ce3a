"""The header of a plain file in a tar shard, read without tarfile's detours.

Nearly all headers of a shard look alike: a short name, octal numbers of fixed width, a regular
file. Those are read here. Whatever looks otherwise (pax and GNU extensions, binary numbers, names
in two parts, damage) is left to tarfile, whose word is final; this module never says anything
else than tarfile would.
"""

import re
from zlib import adler32

# mode, uid, gid, size, mtime, checksum, type; as GNU tar, Python, libarchive and Go write them
NUMBERS = re.compile(rb"(?:[0-7]{6}[0-7 ]\0){3}([0-7]{11})[\0 ][0-7]{11}[\0 ]([0-7]{6})\0 0")
# the device numbers of a file that is no device
DEVICE = {bytes(16), b"0000000\0" * 2, b"000000 \0" * 2}


def plain_file(header: bytes) -> tuple[str, int] | None:
    """Return (name, size) from a 512-byte header of a regular file; None: tarfile must look.

    >>> plain_file(bytes(512)) is None
    True
    """
    numbers = NUMBERS.match(header, 100)
    if numbers is None or not header.isascii() or header[345]:
        return None
    if header[329:345] not in DEVICE or _sum(header) != int(numbers[2], 8):
        return None
    return header[:100].partition(b"\0")[0].decode(), int(numbers[1], 8)


def _sum(header: bytes) -> int:
    """Return the checksum that an ASCII header should have; its own field counts as 8 spaces.

    Adler-32's low half is 1 + the sum modulo 65521, and 504 bytes below 128 stay below that.
    """
    return (adler32(header[156:], adler32(header[:148])) & 0xFFFF) - 1 + 8 * ord(" ")
