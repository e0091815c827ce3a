"""What the shells say to each other about a connection for payloads in the clear; see bulk.py.

No session hears it: balancer/link.py and balancer/bulk_server.py do.
"""

from dataclasses import dataclass
from typing import ClassVar

from .message_parts import Payloads


@dataclass(frozen=True, slots=True)
class Bulk:
    """Under CURVE, from a balancer: open a second connection, to this port, for payloads in clear.

    name, password: what it is known by; key: what its messages are sealed with (see bulk.py). Empty
    over that connection, either way: it works, the rest of the talk goes there. Empty under CURVE,
    either way: it does not, the talk goes on here.
    """

    PAYLOADS: ClassVar[Payloads] = "none"
    port: int
    name: bytes
    password: bytes
    key: bytes
