"""The programs of units are in checkpoints: a resumed job goes on with them, on units alone."""

from pathlib import Path

import pytest
import torch

from counterpoise.sched import schedule
from counterpoise.sched.runtime import load_checkpoint, resumed_schedule, save_checkpoint
from tests.sched.runtime.encoders.models import make_model, make_samples
from tests.sched.runtime.encoders.processes import loader_step
from tests.sched.runtime.pool import Pool
from tests.sched.runtime.units.processes import UnitSetting, make_pipe

SETTING = UnitSetting("1f1b", (1, 1), (3, 1), (2,))
OTHER = "gpipe"


def go_on(rank: int, folder: Path, step: int) -> dict[int, str]:
    """Train a step, from a checkpoint of the one before if there is one; return the programs."""
    before = folder / f"step-{step}" if step else None
    model = make_model(SETTING.layers, 1, torch.float32, merges=False)
    resumed = resumed_schedule(before, OTHER if step else SETTING.name)
    pipe, _ = make_pipe(SETTING, model, rank, resumed)
    try:
        if before is not None:
            load_checkpoint(before, pipe)
        samples = make_samples(SETTING.microbatches, step, torch.float32)
        pipe.step(loader_step(samples, sum(len(s.ids) for s in samples)))
        save_checkpoint(folder / f"step-{step + 1}", pipe)
        return {count: str(program) for count, program in pipe.programs().items()}
    finally:
        pipe.close()


@pytest.mark.slow
def test_a_resumed_job_goes_on_with_its_programs(pool: Pool, tmp_path: Path) -> None:
    first, again = (pool.run(go_on, tmp_path, step) for step in (0, 1))
    assert first == again
    assert first.count(first[0]) == len(first)
    # Programs of units have no encoder passes among their own: they are not for a mesh.
    resumed = resumed_schedule(tmp_path / "step-2", OTHER)
    saved = {count: str(resumed.saved[1, count]) for count in first[0]}
    assert saved == first[0]
    assert schedule(SETTING.name, ranks=1, microbatches=4) in resumed.saved.values()
    assert resumed(1, 4) == schedule(OTHER, ranks=1, microbatches=4)
