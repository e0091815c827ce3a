"""What torchdata's state suites construct: our DataLoader under their class' name.

Their argument `snapshot_every_n_steps` says how often workers report state. Ours is exact at every
step, so it is taken and ignored.
"""

from typing import Any

from counterpoise import DataLoader


class StatefulDataLoader(DataLoader):
    """Our DataLoader, which takes and ignores `snapshot_every_n_steps`."""

    def __init__(self, *args: Any, snapshot_every_n_steps: int = 1, **named: Any) -> None:
        del snapshot_every_n_steps
        super().__init__(*args, **named)
