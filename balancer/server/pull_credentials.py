"""Makes what ranks connect with to workers from which they pull payloads."""

import os

from ..coordinator.peers.records import PullCredentials
from ..transport.keys import new_pair


def new_credentials(key: bytes, has_keys: bool) -> PullCredentials | None:
    """Return new credentials for a worker with this public key, empty if it has none.

    Where the balancer has keys nothing travels in the clear: None for a worker without.
    """
    if key:
        pair = new_pair("trainer")
        return PullCredentials(pair.public, pair.secret)
    return None if has_keys else PullCredentials(b"", os.urandom(16).hex().encode())
