"""All ranks make the same groups in the same order, whatever the hash seeds of their strings."""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from counterpoise.sched.runtime import Units, UnitSize
from counterpoise.sched.runtime.units.place import UnitPlace
from tests.sched.runtime.units.processes import UnitSetting, run_units

pytestmark = pytest.mark.slow


def test_communicators_of_units_have_one_order() -> None:
    units = Units(UnitSize(2, 2), UnitSize(1, 1))
    place = object.__new__(UnitPlace)
    object.__setattr__(place, "units", units)
    names = ["b", "a", "c"]
    assert [*place.communicator_ranks(names)] == [*place.communicator_ranks(names[::-1])]


def reversed_order(rank: int) -> str:
    """Return the error of units of which one process has another order of communicators."""
    right = UnitPlace.communicator_ranks

    def other(self: UnitPlace, names: Iterable[str]) -> Mapping[str, Sequence[int]]:
        found = right(self, names)
        return {name: found[name] for name in ([*found][::-1] if rank == 3 else found)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UnitPlace, "communicator_ranks", other)
        with pytest.raises(ValueError, match="as group 0, process 0 would make") as found:
            run_units(rank, UnitSetting("1f1b-alg1", (1, 2), (2, 1)))
    return str(found.value)


def test_ranks_that_would_make_groups_in_another_order_say_so(pool) -> None:
    for text in pool.run(reversed_order):
        assert "and process 3 '" in text


# Interpreters that import torch anew.
@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 9))
def test_a_job_under_torchrun_with_a_hash_seed_for_each_rank(tmp_path: Path, seed: int) -> None:
    command = [str(Path(sys.executable).with_name("torchrun")), "--standalone"]
    command += ["--nproc-per-node", "4", "--no-python", "bash", "-c"]
    script = f"{sys.executable} -m tests.sched.runtime.seeded {tmp_path / 'found'}"
    command.append(f"PYTHONHASHSEED=$(({seed} + 10 * RANK)) exec {script}")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    done = subprocess.run(
        command, env=environment, timeout=200, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in (tmp_path / "found").read_text().splitlines()]
    assert len({seed for _, seed, _ in lines}) == 4
    assert max(float(error) for _, _, error in lines) <= 1e-5
