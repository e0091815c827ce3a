"""What torchdata's state suites construct: our DataLoader under their class' name.

Their argument `snapshot_every_n_steps` says how often workers report state. Ours is exact at every
step, so it is taken and ignored.
"""

import inspect
from typing import Any

from counterpoise import DataLoader

_ARGUMENTS = inspect.signature(DataLoader.__init__).parameters.values()
_IGNORED = inspect.Parameter("snapshot_every_n_steps", inspect.Parameter.KEYWORD_ONLY, default=1)


class StatefulDataLoader(DataLoader):
    """Our DataLoader, which takes and ignores `snapshot_every_n_steps`."""

    def __init__(self, *args: Any, snapshot_every_n_steps: int = 1, **named: Any) -> None:
        del snapshot_every_n_steps
        super().__init__(*args, **named)

    # torchtitan looks up there which arguments there are
    __init__.__signature__ = inspect.Signature([*_ARGUMENTS, _IGNORED])  # type: ignore[attr-defined]
