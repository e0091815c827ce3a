"""Reads ranges by fsspec: S3 (s3fs), Google (gcsfs), Azure (adlfs), Hugging Face, msc.

An object that is read over has another version. S3 compares it with each request; where a file
system cannot, the object's state is asked for again from time to time.
"""

import importlib
import time
from typing import Any

from ..sources.failures import DataChangedError
from ..sources.urls import shown, split_url
from .options import StoreOptions
from .repeating import check_size

# What fsspec's file systems call what changes with an object, the best first.
VERSIONS = ("ETag", "etag", "e_tag", "generation", "md5Hash", "blob_id", "oid", "sha256")
TIMES = ("LastModified", "last_modified", "mtime", "updated", "created")
INSTALL = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub"}
# After so long an object is looked at again, where its version does not go with each request.
LOOK_S = 10.0


class FsspecStore:
    """The objects of one of fsspec's file systems."""

    def __init__(self, scheme: str, options: StoreOptions) -> None:
        try:
            fsspec = importlib.import_module("fsspec")
            kind = fsspec.get_filesystem_class(scheme)
        except (ImportError, ValueError) as error:
            package = INSTALL.get(scheme, "adlfs" if scheme.startswith("a") else scheme)
            raise ValueError(
                f"{scheme}:// is read by fsspec with {package}, which cannot be imported here "
                f"({type(error).__name__}): pip install fsspec {package}"
            ) from None
        self._timeout = options.timeout
        self._looked: dict[str, float] = {}
        arguments: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
        if scheme == "s3":
            seconds = {"connect_timeout": options.timeout, "read_timeout": options.timeout}
            pool = {"max_pool_connections": options.requests}
            arguments["config_kwargs"] = {**seconds, **pool, "retries": {"max_attempts": 1}}
        self._fs = kind(**arguments)
        # What fails is repeated by the caller: see repeating.py.
        if hasattr(self._fs, "retries"):
            self._fs.retries = 1

    def state(self, url: str) -> tuple[int, str]:
        """Return the size and version of an object."""
        info = self._fs.info(self._path(url))
        if info.get("type") == "directory" or info.get("size") is None:
            raise FileNotFoundError
        self._looked[url] = time.monotonic()
        return int(info["size"]), _read_version(info)

    def read(self, url: str, start: int, end: int, size: int, version: str) -> bytes:
        """Return the bytes from start to end of an object that has this size and version."""
        if split_url(url)[0] == "s3" and hasattr(self._fs, "_call_s3"):
            data = self._read_s3(url, start, end, version)
        else:
            data = self._fs.cat_file(self._path(url), start=start, end=end)
            if time.monotonic() - self._looked.get(url, -LOOK_S) > LOOK_S and (
                self.state(url) != (size, version)
            ):
                raise DataChangedError.at(shown(url))
        check_size(data, end - start)
        return bytes(data)

    def list(self, url: str) -> list[tuple[str, int, str]]:
        """Return (URL, size, version) of objects: of a glob, or directly below a folder."""
        path = self._path(url)
        if any(mark in path for mark in "*?["):
            infos = self._fs.glob(path, detail=True).values()
        else:
            infos = self._fs.ls(path, detail=True)
        scheme = split_url(url)[0]
        return [
            (f"{scheme}://{self._path(info['name'])}", int(info["size"]), _read_version(info))
            for info in infos
            if info.get("type") == "file"
        ]

    def _path(self, url: str) -> str:
        return str(self._fs._strip_protocol(url))

    def _read_s3(self, url: str, start: int, end: int, version: str) -> bytes:
        asyn = importlib.import_module("fsspec.asyn")
        _, bucket, key = split_url(url)
        asked = {"Bucket": bucket, "Key": key, "Range": f"bytes={start}-{end - 1}"}
        if version.startswith('"'):
            asked["IfMatch"] = version

        async def body() -> bytes:
            answer = await self._fs._call_s3("get_object", **asked)
            async with answer["Body"] as stream:
                data: bytes = await stream.read()
                return data

        try:
            body_bytes: bytes = asyn.sync(self._fs.loop, body, timeout=2 * self._timeout + 1)
        except OSError as error:
            # s3fs says neither of these by a type of its own
            cause = repr(error.__cause__)
            if "PreconditionFailed" in cause or "InvalidRange" in cause:
                raise DataChangedError.at(shown(url)) from None
            raise
        return body_bytes


def _read_version(info: dict[str, Any]) -> str:
    for name in (*VERSIONS, *TIMES):
        if info.get(name) is not None:
            return str(info[name])
    return ""
