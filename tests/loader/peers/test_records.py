"""Records pass through a memory file, whole or not at all."""

import os

import pytest

from counterpoise.loader.peers.records import (
    RELEASE_BYTES,
    RecordKind,
    RecordReader,
    RecordWriter,
)
from tests.loader.peers.memory_store import held_bytes


def test_records_are_read_in_order() -> None:
    writer = RecordWriter()
    reader = RecordReader(writer.path, writer.token)
    writer.append(RecordKind.POST, "costs/ä", b"values")
    writer.append(RecordKind.CLOSED)
    found = [(each.kind, each.key, reader.body_of(each)) for each in reader.read()]
    assert found == [(RecordKind.POST, "costs/ä", b"values"), (RecordKind.CLOSED, "", b"")]
    assert list(reader.read()) == []
    writer.close()
    reader.close()


def test_a_record_counts_once_it_is_whole() -> None:
    writer = RecordWriter()
    whole = RecordReader(writer.path, writer.token)
    end = writer.append(RecordKind.POST, "key", bytes(5000))
    (record,) = whole.read()
    # As if the writer had been killed in the middle of it.
    for size in (end - 1, record.start + 17, record.start + 5):
        os.truncate(writer.path, size)
        cut = RecordReader(writer.path, writer.token)
        assert list(cut.read()) == []
        cut.close()
    whole.close()
    writer.close()


def test_another_file_under_the_same_number_is_refused() -> None:
    writer = RecordWriter()
    with pytest.raises(OSError, match="is another file now"):
        RecordReader(writer.path, bytes(16))
    writer.close()


def test_what_was_released_takes_no_memory_and_the_rest_stays() -> None:
    writer = RecordWriter()
    reader = RecordReader(writer.path, writer.token)
    for number in range(64):
        end = writer.append(RecordKind.POST, str(number), bytes([number]) * 16_384)
    records = list(reader.read())
    before = held_bytes(writer)
    writer.release(records[48].start)
    assert before - held_bytes(writer) >= 48 * 16_384 - RELEASE_BYTES
    assert [reader.body_of(each) for each in records[48:]] == [
        bytes([number]) * 16_384 for number in range(48, 64)
    ]
    writer.release(end - 1)
    writer.append(RecordKind.CLOSED)
    assert [each.kind for each in reader.read()] == [RecordKind.CLOSED]
    writer.close()
    reader.close()
