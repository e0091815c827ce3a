"""Walk a rank's operations: wait for what each reads, run it, keep what it writes."""

from .walk import Measured, Waits, Walker, walk

__all__ = ["Measured", "Waits", "Walker", "walk"]
