"""The units of a layout's file: what a job can be started from, and what is refused."""

import json
from pathlib import Path

import pytest

from counterpoise.sched.runtime import Units, UnitSize
from counterpoise.sched.runtime.units.mesh import refuse_processes


def write(path: Path, **tensor: int) -> Path:
    """Write a layout whose units have these sizes of tensor parallelism, and dp 3 each."""
    units = {name: {"tp": tp, "dp": 3, "pp": 1} for name, tp in tensor.items()}
    path.write_text(json.dumps({"version": 1, "units": units}))
    return path


def test_units_of_one_tensor_parallelism_are_formed(tmp_path: Path) -> None:
    found = Units.from_layout(write(tmp_path / "layout.json", backbone=4, encoder=4), ahead=1)
    assert found == Units(UnitSize(3, 1), UnitSize(3, 1), ahead=1, tp=4)
    assert (found.ranks, found.processes) == (6, 24)


def test_units_of_different_tensor_parallelism_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "layout.json", backbone=4, encoder=2)
    with pytest.raises(ValueError, match="it has backbone tp 4, encoder tp 2; the runtime"):
        Units.from_layout(path)


def test_other_numbers_of_processes_are_refused() -> None:
    units = Units(UnitSize(2, 1), UnitSize(3, 1), tp=2)
    refuse_processes(20, units.tp, units.sizes)
    words = "15 processes, and units of 2 and 3 ranks with 2 processes for each rank; start 10"
    with pytest.raises(ValueError, match=words):
        refuse_processes(15, units.tp, units.sizes)
    with pytest.raises(ValueError, match="there are 6 processes, and units of 2 and 3 ranks; st"):
        refuse_processes(6, 1, units.sizes)
    with pytest.raises(ValueError, match="tp is 0; give 1 or more"):
        Units(UnitSize(2, 1), UnitSize(3, 1), tp=0)
