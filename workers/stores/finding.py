"""Finds the files of a pattern, which may be local, or in a store, or both."""

from pathlib import Path
from typing import Any

from ..sources.file_patterns import Pattern, find_shards, texts
from ..sources.urls import is_url, shown


def find_files(pattern: Pattern, root: str | Path | None = None) -> tuple[Any, ...]:
    """Return the files of a pattern, sorted, each once: paths, and StoreFiles for URLs.

    A folder means its *.tar. With a root, URLs are refused unless this process was told which ones
    jobs of others may name (`restrict_urls`). Raises what `find_shards` and `list_urls` raise.
    """
    given = texts(pattern)
    urls = [text for text in given if is_url(text)]
    if not urls:
        return find_shards(pattern, root)
    from .allowed import are_restricted  # what is local does without
    from .files import list_urls

    if root is not None and not are_restricted():
        raise ValueError(
            f"{shown(urls[0])!r} is no path below the root {root}: URLs are read where the process "
            "says which (counterpoise worker --allow-url PREFIX)"
        )
    local = [text for text in given if not is_url(text)]
    stored = [file for url in urls for file in list_urls(url)]
    ordered = sorted(dict.fromkeys(stored), key=lambda file: file.url)
    return (*(find_shards(local, root) if local else ()), *ordered)
