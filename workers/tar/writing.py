"""Writes tar shards in webdataset's form, whose bytes follow from their samples alone.

Members have no owner, and no time. Behind the last one stands an empty member with a hash of all
before it in its name. Readers of webdataset's form leave it out, as they do with all names of the
form `__name__/...`. What is kept about such a shard (index, costs) is kept under this hash in place
of the file's time: it stays true where the shard is copied, which gives it another time.
"""

import hashlib
import json
import re
import tarfile
from collections.abc import Mapping
from typing import Any, BinaryIO

from .headers import BLOCK
from .index import META, NAME, SEAL, SEAL_BYTES, SEAL_END
from .members import encode_member, refuse_pickled

# A dot would end the key, a first `_` may hide the sample, and a member needs a name.
ESCAPED = re.compile(r"[.](?=[^/]*$)|\0|^_(?=_)|(?<=/)$|^$")
REMEDY = (
    "leave it out, or prepare a data set in Python whose samples have arrays, texts and numbers as "
    "fields of their own (docs/guides/prepare.md)"
)


def encode_sample(raw: Mapping[str, Any]) -> dict[str, bytes]:
    """Return a raw sample's members by extension; ValueError for what a shard cannot hold.

    Fields whose names begin with `__` are left out.
    """
    members = dict[str, bytes]()
    for field, value in raw.items():
        if field.startswith("__"):
            continue
        try:
            name, data = encode_member(field.lower(), value)
        except (TypeError, ValueError) as error:
            fault = f"{field}: {_unlike_json(value)} cannot be written: {error}"
            raise ValueError(f"{fault}; {REMEDY}") from None
        refuse_pickled(name)
        if name in members:
            raise ValueError(f"{field}: another field is called {name}, too")
        members[name] = data
    if not members:
        raise ValueError("it has no fields: nothing would be written")
    return members


def _unlike_json(value: Any) -> str:
    """Return what cannot be written: the column that JSON has no value for, or the whole."""
    for name, column in value.items() if isinstance(value, dict) else ():
        try:
            json.dumps(column)
        except (TypeError, ValueError):
            return f"column {name!r}, {type(column).__name__},"
    return type(value).__name__


def shard_key(key: str) -> str:
    """Return a key as it can stand in a shard, where the first dot after the last slash ends it.

    >>> shard_key("a/b.c"), shard_key("a.b/c"), shard_key("__a__"), shard_key("a%2Eb")
    ('a/b%2Ec', 'a.b/c', '%5F_a__', 'a%2Eb')
    """
    return ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}" if match[0] else "%00", key)


class ShardWriter:
    """Writes samples to a file that is opened for it; `close` ends the shard, not the file."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.size = 0
        self._keys = set[str]()
        self._digest = hashlib.blake2b(digest_size=SEAL_BYTES)

    def write(self, key: str, members: Mapping[str, bytes]) -> None:
        """Write a sample; ValueError, and nothing is written, where no reader would find it."""
        if key in self._keys:
            raise ValueError(f"another sample is called {key!r}, too; keys must differ")
        names = {extension: f"{key}.{extension}" for extension in members}
        for extension, name in names.items():
            match = NAME.fullmatch(name)
            if match is None or match.groups() != (key, extension) or META.match(name):
                raise ValueError(f"{name!r} cannot be the name of a member; use letters and digits")
            name.encode()
        self._keys.add(key)
        for extension, data in members.items():
            self._put(names[extension], data)

    def _put(self, name: str, data: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
        for part in (header, data, bytes(-len(data) % BLOCK)):
            self.file.write(part)
            self._digest.update(part)
            self.size += len(part)

    def close(self) -> str:
        """Write the end; return the hash of what is before it."""
        digest = self._digest.hexdigest()
        self._put(f"{SEAL}{digest}", b"")
        self.file.write(SEAL_END)
        self.size += len(SEAL_END)
        return digest
