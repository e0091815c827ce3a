"""A dataset that only remote workers can see: a description to be sent to them."""

from collections.abc import Mapping, Sequence
from typing import Any

VISION_LANGUAGE = "counterpoise.workers:VisionLanguage"


class RemoteDataset:
    """Tar shards on the workers' side, below the --root they were started with.

    pattern: as for TarDataset, relative to the workers' root. transform: the name that their
    operator registered, or "package.module:function" that they allow; arguments: JSON values for
    it. The trainer needs neither the files nor the transform.
    """

    def __init__(
        self,
        pattern: str | Sequence[str],
        transform: str | None = VISION_LANGUAGE,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.pattern = [pattern] if isinstance(pattern, str) else list(pattern)
        self._transform = transform
        self._arguments = dict(arguments or {})

    def spec(self) -> dict[str, Any]:
        """Return the JSON-able description that workers open."""
        transform = None
        if self._transform is not None:
            transform = {"name": self._transform, "args": self._arguments}
        return {"source": "tar", "pattern": self.pattern, "transform": transform}

    def __getitem__(self, index: int) -> Any:
        raise TypeError(f"sample {index} is with the workers: iterate over the loader")

    def __len__(self) -> int:
        raise TypeError("how many samples there are is known to the workers: see loader.num_steps")
