"""What units have in common."""

import pytest

from counterpoise.sched.runtime import Units, UnitSize
from counterpoise.sched.runtime.units.place import refuse_between_units


def test_units_of_different_tp_share_no_parameter() -> None:
    units = Units(UnitSize(2, 1, tp=2), UnitSize(2, 1), generator=UnitSize(1, 1, tp=2))
    refuse_between_units({"of the language model": (0, 1, 4), "of the encoders": (2, 3)}, units)
    with pytest.raises(ValueError, match="words is shared by units of tp 1 and 2, whose copies"):
        refuse_between_units({"words": (1, 2)}, units)
