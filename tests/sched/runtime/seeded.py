"""A job whose ranks have hash seeds of their own: units, lanes and encoders, beside one process.

`seeded.py FILE`, ranks as torchrun gives them; each appends to FILE its rank, its PYTHONHASHSEED
and its worst error.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from tests.sched.runtime.encoders.processes import Setting, run_setting
from tests.sched.runtime.units.processes import UnitSetting, run_units

UNITS = (
    UnitSetting("1f1b-alg2", (1, 2), (2, 1)),
    UnitSetting("1f1b-alg1", (1, 2, 1), (1, 1, 2), (1, 1)),
    UnitSetting("1f1b-alg2", (1, 3), (1, 1)),
)
ENCODERS = (
    Setting("1f1b-alg2", 2, 1, (1, 1), replicas=1, divided=True, tp=2).in_gaps(),
    Setting("zbv", 2, 2, (2,), replicas=2).in_gaps(),
)


def main(file: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    errors = [run_units(rank, setting) for setting in UNITS]
    errors += [run_setting(rank, setting, 1) for setting in ENCODERS]
    worst = max(error for one in errors for error in one.values())
    with file.open("a") as out:
        out.write(f"{rank} {os.environ['PYTHONHASHSEED']} {worst}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
