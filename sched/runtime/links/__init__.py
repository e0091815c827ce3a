"""Move tensors between the ranks of a pipeline: the interface, and its two implementations."""

from .interface import Links, Transfer
from .loopback import Deadlock, Loopback
from .place import MeshPlace, gather_objects, monitored_barrier
from .process_groups import (
    Channel,
    Groups,
    PeerLostError,
    ProcessGroupLinks,
    add_up,
    channels_of,
    first_pipelines,
    make_groups,
    wait_for,
)

__all__ = [
    "Channel",
    "Deadlock",
    "Groups",
    "Links",
    "Loopback",
    "MeshPlace",
    "PeerLostError",
    "ProcessGroupLinks",
    "Transfer",
    "add_up",
    "channels_of",
    "first_pipelines",
    "gather_objects",
    "make_groups",
    "monitored_barrier",
    "wait_for",
]
