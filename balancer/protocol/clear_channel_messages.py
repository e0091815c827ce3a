"""Shell-level messages about a connection for payloads in the clear; see transport/sealing.py.

No session hears it: balancer/transport/link.py and balancer/server/clear_payloads.py do.
"""

from .records import ArrayRecord, Integer


class ClearPayloadOffer(ArrayRecord, frozen=True):
    """Under CURVE, from a balancer: open a second connection, to this port, for payloads in clear.

    name, password: what it is called; key: what its messages are sealed with (sealing.py). Empty
    over that connection, either way: it works, the rest of the talk goes there. Empty under CURVE,
    either way: it does not, the talk goes on here.
    """

    port: Integer
    name: bytes
    password: bytes
    key: bytes
