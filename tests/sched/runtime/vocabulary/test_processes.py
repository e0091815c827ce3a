"""Vocabulary layers over real processes: both layers, options, low precision, checkpoints."""

from dataclasses import replace

import pytest
import torch

from tests.sched.runtime.pool import Pool
from tests.sched.runtime.vocabulary.cases import OPTIONS
from tests.sched.runtime.vocabulary.processes import Setting, run_setting, save_and_load

SETTINGS = [
    Setting("1f1b-alg2", tied=True),
    Setting("1f1b-alg1", keep="nothing", loss=OPTIONS["all"]),
    Setting("1f1b-naive", ranks=2, loss=OPTIONS["smoothing"]),
    Setting("1f1b-interlaced", inputs=False, keep="nothing", loss=OPTIONS["softcap"]),
    Setting("v-half-alg2", ranks=2, tied=True, loss=OPTIONS["z-loss"]),
    Setting("v-half-alg1"),
    Setting("v-half-naive", tied=True, keep="nothing", loss=OPTIONS["all"]),
    Setting("interleaved-alg2", keep="nothing", loss=OPTIONS["smoothing and softcap"]),
    Setting("interleaved-alg1", ranks=2, tied=True),
]
LOW = Setting("1f1b-alg2", hidden=64, words=300, longest=60)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: f"{s.name}-{s.ranks}")
def test_loss_and_gradients_are_within_1e5_of_double_precision(
    pool: Pool, setting: Setting
) -> None:
    for found in pool.run(run_setting, setting):
        assert max(found.values()) <= 1e-5, found


@pytest.mark.parametrize(
    "setting",
    [
        replace(LOW, dtype=torch.bfloat16),
        replace(LOW, name="v-half-alg1", dtype=torch.bfloat16),
        replace(LOW, name="1f1b-naive", dtype=torch.bfloat16, tied=True),
        replace(LOW, autocast=torch.bfloat16),
    ],
    ids=lambda s: f"{s.name}-{'autocast' if s.autocast else 'bf16'}",
)
def test_errors_in_bf16_are_at_most_half_more_than_those_of_one_process(
    pool: Pool, setting: Setting
) -> None:
    (found, *_) = pool.run(run_setting, setting)
    assert found.pop("loss") < 1e-2
    assert max(found.values()) <= 1.5, found


@pytest.mark.parametrize("tied", [False, True])
def test_a_checkpoint_of_four_ranks_loads_on_two_and_into_the_plain_model(
    pool: Pool, tied: bool
) -> None:
    for same in pool.run(save_and_load, tied):
        assert all(same)
