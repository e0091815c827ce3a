"""The units of a layout's file: what a job can be started from, and what is refused."""

import json
from pathlib import Path

import pytest

from counterpoise.sched.runtime import Units, UnitSize
from counterpoise.sched.runtime.links.process_groups import first_pipelines
from counterpoise.sched.runtime.units.layout import refuse_processes
from counterpoise.sched.runtime.units.place import refuse_between_units


def write(path: Path, **tensor: int) -> Path:
    """Write a layout whose units have these sizes of tensor parallelism, and dp 3 each."""
    units = {name: {"tp": tp, "dp": 3, "pp": 1} for name, tp in tensor.items()}
    path.write_text(json.dumps({"version": 1, "units": units}))
    return path


def test_units_have_the_tensor_parallelism_of_their_layout(tmp_path: Path) -> None:
    path = write(tmp_path / "layout.json", backbone=4, encoder=2, generator=1)
    found = Units.from_layout(path, ahead=1)
    sizes = UnitSize(3, 1, tp=4), UnitSize(3, 1, tp=2), UnitSize(3, 1)
    assert found == Units(sizes[0], sizes[1], ahead=1, generator=sizes[2])
    assert (found.ranks, found.processes) == (9, 21)


@pytest.mark.parametrize("backbone", [1, 2, 3, 4])
@pytest.mark.parametrize("encoder", [1, 2, 3, 6])
def test_lanes_have_each_process_of_one_rank_after_the_other(backbone: int, encoder: int) -> None:
    units = Units(UnitSize(2, 1, backbone), UnitSize(1, 2, encoder), generator=UnitSize(1, 1, 2))
    lanes = units.lanes()
    for rank in range(units.ranks):
        own = [lane[rank] for lane in lanes]
        assert own == sorted(own)
        assert set(own) == set(units.processes_of(rank))
        assert {units.rank_of(process) for process in own} == {rank}
    # ranks of one unit change together, so sums within it are those of one lane each
    for same in ((0, 1), (2, 3)):
        steps = [{lane[rank] - units.processes_of(rank)[0] for rank in same} for lane in lanes]
        assert all(len(step) == 1 for step in steps)
    # and each lane is the first of some process
    first = first_pipelines(lanes)
    assert sorted(first) == list(range(units.processes))
    assert set(first.values()) == set(range(len(lanes)))


def test_other_numbers_of_processes_are_refused() -> None:
    units = Units(UnitSize(2, 1, tp=2), UnitSize(3, 1))
    refuse_processes(14, units.sizes)
    words = "15 processes, and units of 2 ranks of 2 processes and 3 ranks; start 7"
    with pytest.raises(ValueError, match=words):
        refuse_processes(15, units.sizes)
    with pytest.raises(ValueError, match="encoder has dp 3, pp 1 and tp 0; give 1 or more"):
        Units(UnitSize(2, 1), UnitSize(3, 1, tp=0))


def test_units_of_different_tp_share_no_parameter() -> None:
    units = Units(UnitSize(2, 1, tp=2), UnitSize(2, 1), generator=UnitSize(1, 1, tp=2))
    refuse_between_units({"of the language model": (0, 1, 4), "of the encoders": (2, 3)}, units)
    with pytest.raises(ValueError, match="words is shared by units of tp 1 and 2, whose copies"):
        refuse_between_units({"words": (1, 2)}, units)
