"""What `counterpoise plan job` is asked and what it answers: options, layouts as text, reports."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from ...sched.shapes import Device, Model, read_device, read_model
from ..inputs.models import memory_limit, parse_layout

Json = dict[str, Any]
PARTS = ("partition", "recompute", "orchestrate")
_MODEL = ("model", "frozen", "data", "batch", "layout")
# The options that each part reads; None: the whole job. All read the device and the seed.
_READS: Mapping[str | None, tuple[str, ...]] = {
    None: (*_MODEL, "gpus", "memory_gb"),
    "partition": (*_MODEL, "costs", "measured", "framework", "whole_encoder"),
    "recompute": (*_MODEL, "costs", "measured", "memory_gb"),
    "orchestrate": ("model", "frozen", "data", "batch", "costs", "gpus", "memory_gb"),
}
_CHAIN = ("tp", "pp", "dp", "cp", "vpp", "microbatches", "sp", "overlap")
_SIZES: Mapping[str | None, tuple[str, ...]] = {
    None: ("tp", "cp"),
    "partition": _CHAIN,
    "recompute": (*_CHAIN, "stages"),
}


class PlanAnswer(NamedTuple):
    """A report with its tables, the plan that --out writes, and lines below the tables."""

    report: Json
    tables: Sequence[Table]
    plan: Callable[[], Mapping[str, object]]
    lines: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """The options of `plan job`; None, or empty, where one is not given."""

    only: str | None
    model: str | None
    gpus: int | None
    device: str
    data: str | None
    batch: int | None
    layout: str
    frozen: tuple[str, ...]
    costs: Path | None
    measured: Path | None
    framework: str | None
    whole_encoder: bool
    memory_gb: float | None
    seed: int

    def __post_init__(self) -> None:
        """Raise ValueError for an option that this part does not read."""
        reads, part = _READS[self.only], f"--only {self.only}" if self.only else "a whole job"
        options = {option for row in _READS.values() for option in row}
        for option in sorted(options - set(reads)):
            if getattr(self, option):
                raise ValueError(f"{part} reads no {_written(option)}: leave it out")

    def need(self, *options: str) -> None:
        """Raise ValueError where an option is missing."""
        if missing := [_written(option) for option in options if getattr(self, option) is None]:
            raise ValueError(f"give {' and '.join(missing)}")

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """Return the numbers of --layout by name. Raises ValueError for names not of this part."""
        return parse_layout(self.layout, _SIZES[self.only])

    @property
    def gpu(self) -> Device:
        """Return the device."""
        return read_device(self.device)

    def read_model(self) -> Model:
        """Return the model, frozen as asked. Raises ValueError where it has no such part."""
        self.need("model")
        found = read_model(str(self.model))
        if unknown := set(self.frozen) - {part.kind for part in found.parts}:
            raise ValueError(f"cannot freeze {min(unknown)!r}: {found.name} has none")
        return found.freeze(*(part.name for part in found.parts if part.kind in self.frozen))

    def limit_bytes(self) -> int:
        """Return the bytes of a GPU that may be used."""
        return memory_limit(self.memory_gb, self.gpu)


def _written(option: str) -> str:
    return f"--{option.replace('_', '-')}"
