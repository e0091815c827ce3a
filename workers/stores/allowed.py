"""Says which URLs and addresses may be read: all for a user's own loop, few for jobs of others.

A worker on another host reads what jobs name. It reads URLs only below the prefixes that its
operator gave (`--allow-url`), wherever a server redirects to, and connects to private addresses
only where a prefix names that address. The services that hand out a machine's credentials
(link-local addresses) are never connected to.
"""

import ipaddress
from collections.abc import Iterable

from ..sources.urls import checked_url, parse_host, shown, split_url
from .repeating import RefusedError

# Beside link-local addresses: services of Amazon, Alibaba and Oracle.
NEVER = [*map(ipaddress.ip_network, ("fd00:ec2::/32", "100.100.100.200/32", "192.0.0.192/32"))]
NEVER_HOSTS = ("metadata.google.internal", "metadata", "metadata.goog")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
# None: nothing is forbidden, for this process reads what its own user names.
_prefixes: tuple[str, ...] | None = None


def restrict_urls(prefixes: Iterable[str]) -> None:
    """Let this process read URLs below these prefixes only; ValueError for one that is no URL."""
    global _prefixes
    _prefixes = tuple(checked_url(prefix) for prefix in prefixes)


def are_restricted() -> bool:
    """Return whether this process reads for others."""
    return _prefixes is not None


def check_allowed(url: str) -> None:
    """Raise ValueError for a URL that may not be read here.

    A prefix ends where a folder does: s3://bucket/a allows s3://bucket/a/b, not s3://bucket/ab.
    """
    if split_url(url)[0] in ("http", "https") and parse_host(url)[0].rstrip(".") in NEVER_HOSTS:
        raise ValueError(f"{shown(url)!r} is a machine's metadata service, which is never read")
    if _prefixes is None or any(_is_below(url, prefix) for prefix in _prefixes):
        return
    prefixes = ", ".join(map(shown, _prefixes)) or "none"
    raise ValueError(
        f"{shown(url)!r} may not be read by this worker: URLs are only read below what its "
        f"operator allows by --allow-url PREFIX (allowed: {prefixes})"
    )


def check_address(host: str, text: str) -> None:
    """Raise RefusedError for an address of a host that may not be connected to."""
    address = _unmap(ipaddress.ip_address(text.partition("%")[0]))
    if address.is_link_local or any(address in network for network in NEVER):
        why = "the address of a machine's metadata service, which is never read"
    elif _prefixes is None or address.is_global or any(_names(p, address) for p in _prefixes):
        return
    else:
        why = "a private address: allow it by --allow-url with the address itself as the host"
    raise RefusedError(f"{host} is {address}, {why}")


def _unmap(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 one stands for, if it does."""
    if isinstance(address, ipaddress.IPv6Address):
        if address in ipaddress.ip_network("64:ff9b::/96"):
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address


def _is_below(url: str, prefix: str) -> bool:
    return url == prefix or url.startswith(prefix if prefix.endswith("/") else f"{prefix}/")


def _names(prefix: str, address: Address) -> bool:
    scheme, place, _ = split_url(prefix)
    host = parse_host(prefix)[0] if scheme in ("http", "https") else place
    return host == str(address) or (host == "localhost" and address.is_loopback)
