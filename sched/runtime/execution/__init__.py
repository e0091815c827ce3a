"""Walk a rank's operations: wait for what each reads, run it, keep what it writes."""

from .walk import Waits, Walker, walk

__all__ = ["Waits", "Walker", "walk"]
