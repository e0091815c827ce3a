"""Checks that shards in a store can be read from here: listed, by ranges, and how fast."""

import time

from ...workers.sources.cache_files import kept_path
from ...workers.sources.urls import scheme_of, shown
from ...workers.stores.files import list_urls
from ...workers.stores.obstore_store import is_installed
from ...workers.stores.options import VARIABLE, StoreOptions
from .figures import Finding, judge

# Read to see how fast one connection is.
PART = 4 << 20


def examine_store(url: str) -> list[Finding]:
    """Return the findings about the shards at a URL, a folder or a pattern; OSError as reading."""
    since = time.perf_counter()
    files = list_urls(url)
    listed_s = time.perf_counter() - since
    size, options = sum(file.size for file in files), StoreOptions.from_environment()
    since = time.perf_counter()
    files[0].read_at(0, 1)
    answer_s = time.perf_counter() - since
    part = min(PART, files[0].size)
    since = time.perf_counter()
    files[0].read_at(0, part)
    rate = part / 1e6 / (time.perf_counter() - since)
    kept = sum(kept_path(file, "index.npz").exists() for file in files)
    slow = scheme_of(url) == "s3" and not is_installed()
    return [
        judge("shards", f"{len(files)} of {size / 1e9:.3g} GB in {listed_s:.1f} s: {shown(url)}"),
        judge("requests", f"{1e3 * answer_s:.0f} ms each, {rate:.0f} MB/s on one connection"),
        judge("indexes", f"{kept} of {len(files)} kept here; others are made once, of headers"),
        judge(
            "client",
            "s3fs only" if slow else "as fast as there is one",
            warn=slow and "pip install obstore: a fifth of the CPU time of a request",
        ),
        judge(
            "reads ahead",
            f"{options.ahead / 1e6:.3g} MB, {options.requests} requests at a time ({VARIABLE})",
        ),
    ]
