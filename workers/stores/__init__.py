"""Reads objects of stores by URL: ranges, many at a time, ahead of need.

`files.open_url(url)` gives a file with `size` and `read_at(offset, size)`;
`files.list_urls(pattern)` gives the files of a pattern. Both work in every process, also after a
fork.

| module | what is in it |
| -- | -- |
| allowed | which URLs and addresses a worker for jobs of others may read |
| options | $COUNTERPOISE_STORE |
| http_store, fsspec_store, obstore_store | one request each |
| repeating | what an error means, and when a request is made again |
| read_ahead | what is read next, within a bound of memory, neighbours as one request |
| files | the public half |
"""
