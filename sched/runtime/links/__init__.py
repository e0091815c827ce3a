"""Move tensors between the ranks of a pipeline: the interface, and its two implementations."""

from .interface import Links, Transfer
from .loopback import Deadlock, Loopback
from .process_groups import Groups, PeerLostError, ProcessGroupLinks, channels_of, make_groups

__all__ = [
    "Deadlock",
    "Groups",
    "Links",
    "Loopback",
    "PeerLostError",
    "ProcessGroupLinks",
    "Transfer",
    "channels_of",
    "make_groups",
]
