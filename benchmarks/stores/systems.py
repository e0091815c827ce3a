"""One epoch by one system, in a process of its own: `python -P -m benchmarks.stores.systems`.

Arguments: SYSTEM URL WORKERS DECODES. Prints JSON: samples, bytes, and seconds from the first
request for a batch to the last batch. All systems make the same of a sample, in as many workers,
and shuffle.
"""

import functools
import importlib
import io
import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

BATCH = 16
AHEAD = "counterpoise, further ahead"  # prefetch_factor=16, requests=128
# Samples that webdataset shuffles among.
BUFFER = 256
IMAGES = ("jpg", "jpeg", "png", "webp")


def decoded(image: bytes) -> int:
    """Return the bytes of an image once it is decoded."""
    from PIL import Image

    with Image.open(io.BytesIO(image)) as opened:
        return len(opened.convert("RGB").tobytes())


class Transform:
    """Makes a number of a sample: bytes as they are, or of its decoded image."""

    def __init__(self, decodes: bool) -> None:
        self.decodes = decodes
        self.deterministic = True

    def __call__(self, raw: dict[str, Any]) -> int:
        """Return the bytes."""
        images = [raw[name] for name in raw if name.rpartition(".")[2] in IMAGES]
        return sum(map(decoded if self.decodes else len, images))


def ours(
    url: str, workers: int, transform: Transform, prefetch: int | None = None
) -> Iterable[list[int]]:
    """Return counterpoise's loader over the shards' samples, in any order."""
    import counterpoise

    dataset = counterpoise.TarDataset(url, transform)
    return counterpoise.DataLoader(
        dataset, batch_size=BATCH, shuffle=True, num_workers=workers, collate_fn=list,
        prefetch_factor=prefetch,
    )  # fmt: skip


def over_s3fs(url: str, workers: int, transform: Transform) -> Iterable[list[int]]:
    """Return webdataset's loader, whose shards are opened by s3fs."""
    import fsspec
    import webdataset
    from torch.utils.data import DataLoader

    gopen = importlib.import_module("webdataset.gopen")
    gopen.gopen_schemes["s3"] = lambda name, *_, **__: fsspec.open(name, "rb").open()
    names = sorted(fsspec.filesystem("s3").glob(f"{url}*.tar"))
    shards = [f"s3://{name}" for name in names]
    dataset = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(BUFFER)
    dataset = dataset.map(transform).batched(BATCH, collation_fn=list)
    return DataLoader(dataset, batch_size=None, num_workers=workers)


def litdata(url: str, workers: int, transform: Transform) -> Iterable[list[int]]:
    """Return litData's loader over its own chunks of the same images."""
    found: Any = importlib.import_module("litdata")
    # Without, its obstore refuses an endpoint of http, and it has no setting for that.
    downloader: Any = importlib.import_module("litdata.streaming.downloader")
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True

    class Sized(found.StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> int:
            return transform(pickle.loads(super().__getitem__(index)))

    options = {
        "endpoint_url": os.environ["AWS_ENDPOINT_URL"],
        "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
        "region_name": "us-east-1",
    }
    cache = os.environ["LITDATA_CACHE"]
    dataset = Sized(url, cache_dir=cache, shuffle=True, storage_options=options)
    loader: Iterable[list[int]] = found.StreamingDataLoader(
        dataset, batch_size=BATCH, num_workers=workers, collate_fn=list
    )
    return loader


SYSTEMS: dict[str, Callable[[str, int, Transform], Iterable[list[int]]]] = {
    "counterpoise": ours,
    AHEAD: functools.partial(ours, prefetch=16),
    "webdataset over s3fs": over_s3fs,
    "litData": litdata,
}


def main(system: str, url: str, workers: str, decodes: str) -> None:
    """Run an epoch and print what came."""
    opening = time.perf_counter()
    loader = SYSTEMS[system](url, int(workers), Transform(decodes == "1"))
    since = time.perf_counter()
    sizes = [size for batch in loader for size in batch]
    seconds = time.perf_counter() - since
    found = {"samples": len(sizes), "bytes": sum(sizes), "seconds": seconds}
    print(json.dumps({**found, "opening": since - opening}))


if __name__ == "__main__":
    main(*sys.argv[1:])
