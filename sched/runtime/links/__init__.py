"""Move tensors between the ranks of a pipeline: the interface, and its two implementations."""

from .interface import Links, Transfer
from .loopback import Deadlock, Loopback

__all__ = ["Deadlock", "Links", "Loopback", "Transfer"]
