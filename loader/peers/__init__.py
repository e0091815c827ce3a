"""Moves small byte strings between the data-parallel ranks of a loader, by their group's store.

It knows nothing of data sets or plans, and starts no thread and no collective. `meet` finds the
ranks; each then posts a value for a key and gathers those of all. Ranks of one host pass theirs
through memory to a leader, which puts one value a host and key into the store: with 8 ranks a host
an eighth of the connections, readers and requests.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .costs import pack_costs, unpack_costs
    from .exchange import Peers
    from .joining import meet
    from .members import Peer

# Each is imported when it is first used: a loop on its own meets nobody.
_HOMES = {
    "Peer": ".members",
    "Peers": ".exchange",
    "meet": ".joining",
    "pack_costs": ".costs",
    "unpack_costs": ".costs",
}

__all__ = ["Peer", "Peers", "meet", "pack_costs", "unpack_costs"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(importlib.import_module(_HOMES[name], __name__), name)
        return found
