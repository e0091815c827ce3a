"""Chooses the address at which a worker serves payloads."""

import socket

from ...balancer.transport.finding import check_open_address, needs_ipv6

AUTO, NONE = "auto", "none"
# Hosts at which all interfaces listen.
WILDCARDS = ("0.0.0.0", "[::]", "*", "")


class NotServedError(ValueError):
    """There is no address where payloads may be served; says why."""


def serving_address(balancer: str, asked: str, has_keys: bool, is_insecure: bool) -> str:
    """Return the address to listen at for pulls.

    asked: "auto" (the interface that reaches the balancer, any port), "none", or an address. Raises
    NotServedError where nothing is to be served, ValueError for an address that other hosts can
    reach while there are no keys.

    >>> serving_address("tcp://127.0.0.1:5555", "auto", has_keys=False, is_insecure=False)
    'tcp://127.0.0.1:*'
    """
    if asked == NONE:
        raise NotServedError("--serve none was given")
    if asked != AUTO:
        check_open_address(asked, has_keys or is_insecure)
        return asked
    if not balancer.startswith("tcp://"):
        raise NotServedError(f"the balancer is at {balancer}, and pulls need tcp")
    address = f"tcp://{own_host(balancer)}:*"
    try:
        check_open_address(address, has_keys or is_insecure)
    except ValueError:
        raise NotServedError(
            "there are no keys, and --insecure was not given, so samples go through the balancer"
        ) from None
    return address


def shown_address(endpoint: str, balancer: str) -> str:
    """Return the address that ranks are told: not all interfaces, but one that others reach.

    >>> shown_address("tcp://0.0.0.0:5600", "tcp://127.0.0.1:5555")
    'tcp://127.0.0.1:5600'
    """
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return f"tcp://{own_host(balancer)}:{port}" if host in WILDCARDS else endpoint


def own_host(balancer: str) -> str:
    """Return this host's address on the interface that reaches the balancer.

    Raises NotServedError where there is none.
    """
    host, _, port = balancer.removeprefix("tcp://").rpartition(":")
    family = socket.AF_INET6 if needs_ipv6(balancer) else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host.strip("[]"), int(port)))  # finds the way, and sends nothing
            address: str = probe.getsockname()[0]
    except (OSError, ValueError) as error:
        raise NotServedError(f"no way to {balancer} was found: {error}") from None
    return f"[{address}]" if family == socket.AF_INET6 else address
