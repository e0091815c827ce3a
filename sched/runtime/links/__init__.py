"""Move tensors between the ranks of a pipeline."""

from .interface import Links, Transfer
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
    "Groups",
    "Links",
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
