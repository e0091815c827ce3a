"""Messages about the clear channel, a second connection for payloads; see transport/sealing.py.

They are handled by balancer/transport/link.py and balancer/server/clear_payloads.py and never reach
a session.
"""

from .records import ArrayRecord, Integer


class ClearPayloadOffer(ArrayRecord, frozen=True):
    """Sent by a balancer under CURVE: open a second connection, to this port, for payloads.

    name, password: the identity for that connection; key: seals its messages (sealing.py). An empty
    offer, from either side, means over the clear channel that it works and is used from now on, and
    under CURVE that it is not used any more.
    """

    port: Integer
    name: bytes
    password: bytes
    key: bytes
