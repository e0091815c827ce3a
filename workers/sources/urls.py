"""Says what is a URL of a store, and shows one without the secrets that it may hold.

Credentials come from the environment, never with a URL: one with a password is refused. A signed
https URL has its secret in the query, so queries are never shown.
"""

import re
from urllib.parse import quote, unquote, urlsplit

from .visible_text import visible

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(//|(?<=pipe:))")
HTTP = ("http", "https")
AZURE = ("az", "abfs", "abfss")
SCHEMES = ("s3", "gs", "gcs", *AZURE, *HTTP, "hf", "msc")
LONGEST_URL = 8192
# a bucket, a container and its account, a host, or an address
PLACE = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9][A-Za-z0-9.-]*)?|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?"
)


def is_url(text: object) -> bool:
    """Return whether a text is a URL, or a command for webdataset's `pipe:`, and not a path.

    >>> is_url("s3://bucket/a.tar"), is_url("pipe:cat a.tar"), is_url("/data/a.tar")
    (True, True, False)
    """
    return isinstance(text, str) and SCHEME.match(text) is not None


def parse_scheme(url: str) -> str:
    """Return a URL's scheme in lower case."""
    return url.partition(":")[0].lower()


def shown(url: str) -> str:
    """Return a URL as errors, logs and ledgers have it: without user, password, query, fragment.

    >>> shown("https://me:secret@host/a.tar?X-Amz-Signature=1"), shown("s3://bucket/a?.tar")
    ('https://host/a.tar?...', 's3://bucket/a?.tar')
    """
    scheme, mark, address = url.partition("://")
    if not mark:
        return visible(scheme.partition(" ")[0])[:80]
    more: list[str] = []
    if scheme.lower() in HTTP:
        address, *more = re.split("[?#]", address, maxsplit=1)
    place, slash, path = address.partition("/")
    if scheme.lower() not in AZURE or ":" in place.partition("@")[0]:
        place = place.rpartition("@")[2]
    return visible(f"{scheme}://{place}{slash}{path}") + ("?..." if more else "")


def checked_to_tell(url: str) -> str:
    """Return a URL that workers elsewhere are told; ValueError for one that has a secret."""
    checked_url(url)
    if parse_scheme(url) in HTTP and ("?" in url or "#" in url):
        raise ValueError(
            f"{shown(url)!r} is signed, and is not given to workers elsewhere: name the object "
            "without its signature, and let the workers have credentials"
        )
    return url


def checked_url(text: str) -> str:
    """Return a URL in its plain form; ValueError for what is none that can be read.

    >>> checked_url("S3://bucket/a.tar")
    's3://bucket/a.tar'
    """
    scheme, _, address = text.partition("://")
    scheme = scheme.lower()
    if scheme not in SCHEMES:
        raise ValueError(
            f"{shown(text)!r} is no local path, and no URL of {', '.join(SCHEMES)}: other URLs and "
            "pipes are not read; copy or mount the shards and give their path"
        )
    place, _, path = address.partition("/")
    path, mark, query = path.partition("?") if scheme in HTTP else (path, "", "")
    if "@" in place and (scheme not in AZURE or ":" in place.partition("@")[0]):
        raise ValueError(
            f"{shown(text)!r} was given with a user or password: put credentials into the "
            "environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, say) and leave them out"
        )
    if (
        not PLACE.fullmatch(place)
        or {".", ".."} & {*unquote(path).split("/")}
        or (scheme not in HTTP and "//" in f"/{path}")  # another object than that with one "/"
        or len(text) > LONGEST_URL
        or not text.isprintable()
    ):
        raise ValueError(
            f"{shown(text)[:200]!r} is malformed: write scheme://bucket-or-host/folder/name.tar, "
            "without ., .. and //"
        )
    if scheme in HTTP:
        place, path = place.lower(), quote(path, "/%{}*[]~!$&'()+,;=:@")
    return f"{scheme}://{place}/{path}{mark}{query.partition('#')[0]}"


def split_url(url: str) -> tuple[str, str, str]:
    """Return (scheme, bucket or host, key or path) of a checked URL."""
    scheme, _, address = url.partition("://")
    place, _, key = address.partition("/")
    return scheme, place, key


def parse_host(url: str) -> tuple[str, int]:
    """Return the host and port of an http(s) URL."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
