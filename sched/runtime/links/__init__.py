"""Move tensors between the ranks of a pipeline: the interface, and its two implementations."""

from .interface import Links, Transfer
from .loopback import Deadlock, Loopback
from .process_groups import (
    Channel,
    Groups,
    PeerLostError,
    ProcessGroupLinks,
    channels_of,
    make_groups,
    wait_for,
)

__all__ = [
    "Channel",
    "Deadlock",
    "Groups",
    "Links",
    "Loopback",
    "PeerLostError",
    "ProcessGroupLinks",
    "Transfer",
    "channels_of",
    "make_groups",
    "wait_for",
]
