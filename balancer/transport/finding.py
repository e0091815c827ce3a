"""Finds a balancer: by its address, by a file that says it, or by the environment.

A file is for balancers whose address is known only when they run (a port that the system chooses, a
host that a scheduler does): it writes `tcp://HOST:PORT` there, and its peers read the file again
while they hear nothing. A name in an address is looked up at every new connection, by
libzmq.
"""

import os
import socket
from pathlib import Path
from urllib.parse import unquote

BALANCER_VARIABLE = "COUNTERPOISE_BALANCER"
MAX_ADDRESS = 300
_FILE = "file://"


def find_address(address: str) -> str:
    """Return the address that is meant now, "" where a file does not say it (yet).

    >>> find_address("tcp://10.0.0.1:5555"), find_address("file:///nowhere/balancer.addr")
    ('tcp://10.0.0.1:5555', '')
    """
    if not address.startswith(_FILE):
        return address
    try:
        text = address_file(address).read_text("ascii", "replace")[: MAX_ADDRESS + 1].strip()
    except OSError:  # it is not there yet, or the folder is away
        return ""
    return text if text.startswith("tcp://") and len(text) <= MAX_ADDRESS else ""


def address_file(address: str) -> Path:
    """Return the path in a file:// address; ValueError if there is none."""
    path = Path(unquote(address.removeprefix(_FILE)))
    if not path.is_absolute():
        raise ValueError(
            f"{address!r:.200}: write a file's address as file:///shared/balancer.addr"
        )
    return path


def checked_address(address: str) -> str:
    """Return an address as it was given; ValueError for one that can never be right."""
    if address.startswith(_FILE):
        address_file(address)
    elif not address.startswith(("tcp://", "ipc://")):
        raise ValueError(
            f"{address!r:.200} is not a balancer's address: give tcp://HOST:PORT, or "
            "file:///shared/balancer.addr, which counterpoise balancer --address-file writes"
        )
    return address


def write_address(path: Path, endpoint: str) -> str:
    """Write where a balancer listens, at once and whole; return what is written.

    In place of all interfaces it is this host's name, which others must be able to look up.
    """
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    address = f"tcp://{socket.getfqdn()}:{port}" if host in ("0.0.0.0", "[::]", "*") else endpoint
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(address + "\n")
    partial.replace(path)
    return address


def needs_ipv6(address: str) -> bool:
    """Return whether an address is of IPv6: written so, or a name that has no other.

    Not for every name: libzmq takes the first of a name's addresses, and listeners have one.

    >>> needs_ipv6("tcp://[::1]:5555"), needs_ipv6("tcp://127.0.0.1:5555"), needs_ipv6("ipc:///a")
    (True, False, False)
    """
    host = address.removeprefix("tcp://").rpartition(":")[0]
    if not address.startswith("tcp://") or host.startswith("["):
        return host.startswith("[")
    if not any(map(str.isalpha, host)):
        return False
    try:
        families = {answer[0] for answer in socket.getaddrinfo(host, None)}
    except OSError:  # it may have an address later
        return False
    return socket.AF_INET not in families


def check_open_address(address: str, allowed: bool) -> None:
    """Raise ValueError for an address that other hosts can reach, unless that is allowed.

    It is allowed if the caller gives keys, or --insecure.

    >>> check_open_address("tcp://127.0.0.1:5555", allowed=False)
    >>> check_open_address("ipc:///tmp/socket", allowed=False)
    """
    if allowed or not address.startswith("tcp://"):
        return
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    import ipaddress  # here: it would delay each start of an embedded balancer

    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ValueError(
            f"{address} can be reached from other hosts, and nothing authenticates them: listen on "
            "tcp://127.0.0.1:PORT, make keys (counterpoise keygen) and give --keys FOLDER, or give "
            "--insecure if the network is private"
        )
