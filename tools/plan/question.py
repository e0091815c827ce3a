"""What `counterpoise plan job` is asked and what it answers: options, layouts as text, reports."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from ...sched.shapes import Device, Model, read_device, read_model
from ..inputs.files import first_row
from ..inputs.models import PARALLEL, memory_limit, parse_parallel

Json = dict[str, Any]
PARTS = ("partition", "recompute", "orchestrate")
_MODEL = ("model", "frozen", "data", "samples_per_step", "parallel")
# The options that each part reads; None: the whole job. All read the device and the seed.
_READS: Mapping[str | None, tuple[str, ...]] = {
    None: (*_MODEL, "gpus", "memory_gb"),
    "partition": (*_MODEL, "measured", "framework", "whole_encoder"),
    "recompute": (*_MODEL, "measured", "memory_gb"),
    "orchestrate": ("model", "frozen", "data", "samples_per_step", "gpus", "memory_gb"),
}
_SIZES: Mapping[str | None, tuple[str, ...]] = {
    None: ("tp", "cp"),
    "partition": tuple(name for name in PARALLEL if name != "stages"),
    "recompute": tuple(PARALLEL),
}
# What a file of measured costs in place of a model has, and the parts that are planned with it.
_MEASURED = {"layers": "partition or recompute", "modules": "orchestrate"}


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
    samples_per_step: int | None
    parallel: str
    frozen: tuple[str, ...]
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
        """Return the numbers of --parallel by name; ValueError for names not of this part."""
        return parse_parallel(self.parallel, _SIZES[self.only])

    @property
    def gpu(self) -> Device:
        """Return the device."""
        return read_device(self.device)

    def read_model(self) -> Model:
        """Return the model, frozen as asked. Raises ValueError where it has no such part."""
        self.need("model")
        for kind, parts in _MEASURED.items():
            if self.has_measured(kind):
                raise ValueError(f"--model {self.model} has measured {kind}: give --only {parts}")
        model = read_model(str(self.model))
        if unknown := set(self.frozen) - {part.kind for part in model.parts}:
            raise ValueError(f"cannot freeze {min(unknown)!r}: {model.name} has none")
        return model.freeze(*(part.name for part in model.parts if part.kind in self.frozen))

    def has_measured(self, kind: str) -> bool:
        """Return whether --model is a file of measured "layers" or "modules", not of shapes."""
        path = Path(self.model or "")
        return path.is_file() and isinstance((first_row(path) or {}).get(kind), list)

    def limit_bytes(self) -> int:
        """Return the bytes of a GPU that may be used."""
        return memory_limit(self.memory_gb, self.gpu)


def _written(option: str) -> str:
    return f"--{option.replace('_', '-')}"
