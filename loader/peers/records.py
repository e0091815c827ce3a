"""Passes records between processes of one host: a memory file that one appends to, others read.

The file has no name in a file system (memfd): others of the same user open it as
/proc/PID/fd/NUMBER, and it is gone with the last process that has it open, also after SIGKILL. The
writer only appends, and the file's size says how far it is: a record counts once all its bytes are
there, so nothing is locked, and a writer that is killed in the middle of one leaves the rest
readable. Pages that all have read are given back to the system (a hole); offsets go on.

The first page has a token, by which readers know that they opened this file and not another that
has its number now, and the time since which the writer waits for the store.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import msgspec

PAGE = mmap.PAGESIZE
# Holes are made for at least so many bytes: each costs a few microseconds.
RELEASE_BYTES = 64 * 1024
_HEADER = struct.Struct("<BxxxIQ")
# Packs the values of several ranks as one, and reads them.
pack_values = msgspec.msgpack.Encoder().encode
unpack_values = msgspec.msgpack.Decoder(tuple[bytes, ...]).decode
TOKEN_BYTES = 16


class RecordKind(IntEnum):
    """What a record says. Those of the leader of a host come first."""

    ROSTER = 1  # all ranks, as JSON
    RESULT = 2  # the values of all ranks for a key
    REASONS = 3  # why keys are not there yet, as JSON
    OFFER = 4  # a value to map: descriptor and size
    FAILED = 5  # why the leader cannot go on
    CLOSED = 6  # the writer takes no part any more
    POST = 7  # a follower's value for a key
    READ = 8  # how far a follower has read
    MAPPED = 9  # a follower has mapped the value of a key, or needs none


@dataclass(frozen=True, slots=True)
class HostRecord:
    """Where a record is: its body's offset and size, and where it starts and ends."""

    kind: RecordKind
    key: str
    start: int
    body: int
    end: int


class RecordWriter:
    """The file that this process appends to."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.memfd_create("counterpoise-peers"), "r+b", buffering=0)
        self.token = os.urandom(TOKEN_BYTES)
        os.pwrite(self._file.fileno(), self.token.ljust(PAGE, b"\0"), 0)
        self._end = self._released = PAGE

    @property
    def path(self) -> str:
        """Where others of this host open it, for as long as this process has it open."""
        return f"/proc/{os.getpid()}/fd/{self._file.fileno()}"

    def append(self, kind: RecordKind, key: str = "", body: bytes = b"") -> int:
        """Append a record; return the offset where it ends."""
        name = key.encode()
        rest = memoryview(_HEADER.pack(kind, len(name), len(body)) + name + body)
        while rest:
            n_bytes = os.pwrite(self._file.fileno(), rest, self._end)
            self._end += n_bytes
            rest = rest[n_bytes:]
        return self._end

    def release(self, offset: int) -> None:
        """Give back the memory of records that end at an offset or before it."""
        offset -= offset % PAGE
        if offset - self._released < RELEASE_BYTES:
            return
        with mmap.mmap(
            self._file.fileno(), offset - self._released, offset=self._released
        ) as pages:
            pages.madvise(mmap.MADV_REMOVE)
        self._released = offset

    def mark_asking(self, since: float) -> None:
        """Say since when this process waits for the store's answer, 0 if it does not."""
        os.pwrite(self._file.fileno(), struct.pack("<d", since), TOKEN_BYTES)

    def close(self) -> None:
        """Give up the file; others that have it open can still read it."""
        self._file.close()


class RecordReader:
    """The file of another process of this host."""

    def __init__(self, path: str, token: bytes) -> None:
        """OSError if it cannot be opened, or is not the file of this token any more."""
        self._file = Path(path).open("rb", buffering=0)  # noqa: SIM115 closed by close()
        if os.pread(self._file.fileno(), TOKEN_BYTES, 0) != token:
            self._file.close()
            raise OSError(f"{path} is another file now")
        self.offset = PAGE

    def read(self) -> Iterator[HostRecord]:
        """Yield the records that have come since."""
        descriptor = self._file.fileno()
        size = os.fstat(descriptor).st_size
        while size - self.offset >= _HEADER.size:
            start = self.offset
            kind, key_size, body_size = _HEADER.unpack(os.pread(descriptor, _HEADER.size, start))
            body = start + _HEADER.size + key_size
            if body + body_size > size:
                return
            key = os.pread(descriptor, key_size, start + _HEADER.size).decode()
            self.offset = body + body_size
            yield HostRecord(RecordKind(kind), key, start, body, self.offset)

    def body_of(self, record: HostRecord) -> bytes:
        """Return a record's body, unless its memory was given back since: then zeros."""
        return os.pread(self._file.fileno(), record.end - record.body, record.body)

    def asking_since(self) -> float:
        """Return since when the writer waits for the store's answer, 0 if it does not."""
        since: float = struct.unpack("<d", os.pread(self._file.fileno(), 8, TOKEN_BYTES))[0]
        return since

    def close(self) -> None:
        """Give up the file."""
        self._file.close()
