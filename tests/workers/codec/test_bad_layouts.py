"""The balancer's check of a payload's layout agrees with the codec that reads it."""

import random

import msgpack
import numpy as np
import pytest

from counterpoise.workers.codec.fields import why_bad_layout
from counterpoise.workers.codec.frames import decode, encode, payload_of

SAMPLES = [
    {},
    {"label": 3, "score": 1.5, "text": "cat", "raw": b"\x00\xff"},
    {"pixels": np.arange(24, dtype=np.uint8).reshape(2, 3, 4), "ids": np.arange(7)},
    {"none": np.zeros((0, 5), np.float32), "flags": np.ones(3, bool), "empty": "", "half": "é"},
    {"z": np.zeros(2, np.complex64), "h": np.zeros((2, 2), np.float16), "scalar": np.array(4.0)},
]
ODD = (
    -1,
    0,
    1,
    64,
    1 << 40,
    1 << 41,
    1 << 63,
    1.5,
    True,
    None,
    "",
    "text",
    "array",
    "<f4",
    b"",
    [],
)


def packed(sample):
    header, buffers = encode(sample)
    return header, bytes(payload_of(buffers))


def is_read(header, payload):
    try:
        decode(msgpack.unpackb(header), payload)
    except Exception:
        return False
    return True


@pytest.mark.parametrize("sample", SAMPLES)
def test_what_the_codec_writes_is_right(sample):
    header, payload = packed(sample)
    assert why_bad_layout(msgpack.packb(header), payload) == ""
    assert why_bad_layout(msgpack.packb(header), memoryview(payload)) == ""


def test_what_it_accepts_can_be_read_and_what_it_refuses_cannot():
    draw = random.Random(3)
    refused = 0
    for number in range(4000):
        header, payload = packed(draw.choice(SAMPLES))
        changed = change(draw, msgpack.unpackb(msgpack.packb(header)))
        raw = bytearray(msgpack.packb(changed))
        if number % 4 == 0 and raw:
            raw[draw.randrange(len(raw))] = draw.randrange(256)
        if number % 5 == 0:
            payload = payload[: draw.randrange(len(payload) + 1)] + b"x" * draw.randrange(2)
        reason = why_bad_layout(bytes(raw), payload)
        assert (reason == "") == is_read(bytes(raw), payload), (changed, reason)
        assert len(reason) < 400
        refused += reason != ""
    assert 1000 < refused < 3900


def change(draw, header):
    """Change one value somewhere in a header."""
    place = header["fields"]
    if not place or draw.random() < 0.05:
        return draw.choice(({"fields": 3}, {"object": [1]}, [], None, {}))
    if draw.random() < 0.2:
        return header
    entry = draw.choice(place)
    at = draw.randrange(len(entry))
    if isinstance(entry[at], list) and entry[at] and draw.random() < 0.7:
        entry[at][draw.randrange(len(entry[at]))] = draw.choice(ODD)
    else:
        entry[at] = draw.choice(ODD)
    return header
