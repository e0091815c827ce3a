"""Reads objects of stores by URL: ranges, many at a time, ahead of need.

`files.open_url(url)` gives a file with `size` and `read_range(offset, size)`;
`files.list_urls(pattern)` gives the files of a pattern. Both work in every process, also after a
fork. A store is a file with one request each: http_store, fsspec_store, obstore_store.
"""
