"""Describes a dataset that only remote workers can see."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..workers.sources.interface import Source

VISION_LANGUAGE = "counterpoise.workers:VisionLanguage"


class RemoteDataset(Source):
    """Data on the workers' side, below the --root they were started with.

    pattern: as for TarDataset and the other formats, relative to the workers' root. transform: the
    name that their operator registered, or "package.module:function" that they allow; arguments:
    JSON values for it. source: the format, a name in workers/sources/registry.py, by default that
    of the files; options: JSON values of the arguments that its class takes beside. The trainer
    needs neither the files nor the transform. Raises ValueError for a URL with a secret.
    """

    def __init__(
        self,
        pattern: str | Sequence[str],
        transform: str | None = VISION_LANGUAGE,
        arguments: Mapping[str, Any] | None = None,
        source: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        from ..workers.sources.urls import checked_to_tell, is_url

        named = [pattern] if isinstance(pattern, str) else list(pattern)
        self.pattern = [checked_to_tell(path) if is_url(path) else path for path in named]
        self._transform = transform
        self._arguments = dict(arguments or {})
        self._source = source
        self._options = dict(options or {})

    def spec(self) -> dict[str, Any]:
        """Return the JSON-able description that workers open."""
        transform = None
        if self._transform is not None:
            transform = {"name": self._transform, "args": self._arguments}
        about = {"pattern": self.pattern, "transform": transform}
        named = {} if self._source is None else {"source": self._source}
        return {**self._options, **named, **about}

    def __getitem__(self, index: int) -> Any:
        raise TypeError(f"sample {index} is with the workers: iterate over the loader")

    def __len__(self) -> int:
        raise TypeError("how many samples there are is known to the workers: see loader.num_steps")
