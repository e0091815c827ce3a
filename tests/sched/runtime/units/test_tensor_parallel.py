"""Units with tensor parallelism: each rank is several processes, in lanes of their own."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from counterpoise.sched.runtime import load_checkpoint, save_checkpoint
from tests.sched.runtime.cases import whole
from tests.sched.runtime.encoders.models import Model, make_model
from tests.sched.runtime.encoders.processes import loader_step
from tests.sched.runtime.models import HIDDEN, WORDS
from tests.sched.runtime.pool import Pool, make_square
from tests.sched.runtime.tensor_parallel import divide
from tests.sched.runtime.units.processes import UnitSetting, make_pipe, run_units, samples_of

pytestmark = pytest.mark.slow

TOLERANCE = 1e-5
# On 4 processes: one rank of each unit; a schedule with input and weight gradients apart.
SAME = UnitSetting("zb-h1", (1, 1, 2), (1, 1, 2), (2, 2), (1,))
# Units of different tp: a process sends to two and hears from one of them, and the other way.
DIFFERENT = (
    UnitSetting("1f1b", (1, 1, 2), (2, 1)),
    UnitSetting("1f1b", (2, 1), (1, 1, 2), (2, 2), (1,)),
)
# Stages that FSDP2 divides over two replicas of the language model, and a part of each.
SHARDED = UnitSetting("1f1b", (2, 1), (2, 1), (2,), sharded="all")
APART = (
    UnitSetting("zb-h1", (2, 1), (2, 1), (2,), sharded="all"),
    UnitSetting("1f1b", (2, 1), (1, 2), (4,), (0,), sharded="a part"),
)
# On 8: stages and replicas.
EIGHT = UnitSetting("zbv", (1, 2, 2), (2, 1, 2), (4,))
MORE = (
    UnitSetting("1f1b-alg2", (2, 1, 2), (1, 2, 2), (2, 4), (0,)),
    UnitSetting("interleaved", (1, 2, 2), (1, 2, 2), (2, 2)),
    UnitSetting("1f1b", (2, 1, 2), (2, 1, 2), (2,), (0,)),
    UnitSetting("1f1b", (1, 1, 2), (3, 1, 2), (2, 2), (0, 1)),
    UnitSetting("1f1b", (1, 1, 4), (1, 1, 4), (2, 4)),
    UnitSetting("zb-h1", (2, 1, 2), (2, 1, 2), sharded="all"),
    UnitSetting("1f1b", (2, 1, 2), (1, 2, 2), sharded="a part"),
)
# Of different tp: numbers of replicas and of processes that do not divide, and both.
MORE_DIFFERENT = (
    UnitSetting("zbv", (2, 1, 2), (4, 1), (4,)),
    UnitSetting("zb-h1", (2, 1), (3, 1, 2)),
    UnitSetting("1f1b-alg2", (1, 2), (3, 1, 2), (2, 4), (0,)),
    UnitSetting("1f1b", (1, 1, 4), (1, 2, 2), (2, 4)),
    UnitSetting("interleaved", (1, 1, 2), (1, 2, 3), (2, 2)),
    UnitSetting("1f1b", (2, 1, 2), (2, 2), sharded="all"),
    UnitSetting("1f1b", (2, 1), (3, 1, 2), sharded="a part"),
)


def assert_equal(pool: Pool, setting: UnitSetting) -> None:
    for rank, found in enumerate(pool.run(run_units, setting, 2)):
        assert max(found.values()) <= TOLERANCE, (rank, found)


@pytest.fixture(scope="module")
def eight() -> Iterator[Pool]:
    made = Pool(8)
    yield made
    made.close()


@pytest.mark.parametrize("setting", [SAME, *DIFFERENT, *APART], ids=str)
def test_training_equals_one_process(pool: Pool, setting: UnitSetting) -> None:
    assert_equal(pool, setting)


@pytest.mark.long
def test_stages_and_replicas_in_lanes_train_as_one_process(eight: Pool) -> None:
    assert_equal(eight, EIGHT)


@pytest.mark.long
@pytest.mark.parametrize("setting", [*MORE, *MORE_DIFFERENT], ids=str)
def test_training_equals_one_process_in_more_settings(eight: Pool, setting: UnitSetting) -> None:
    assert_equal(eight, setting)


def train_on(rank: int, setting: UnitSetting, folder: Path, step: int) -> dict[str, Tensor]:
    """Train a step with Adam, the first or that after its checkpoint; return all weights."""
    model = make_model(setting.layers, 1, torch.float32, merges=False)
    for piece in model.pieces():
        for parameter in piece.parameters():
            parameter.data *= 1 + step  # what is loaded replaces it
    pipe, _ = make_pipe(setting, model, setting.units.rank_of(rank))
    try:
        optimizer = torch.optim.AdamW(pipe.parameters(), lr=0.05)
        if step:
            load_checkpoint(folder / f"step-{step}", pipe, optimizer)
        every, units = samples_of(setting, step), setting.units
        total = sum(len(s.ids) for own in every for s in own)
        at = units.rank_of(rank)
        pipe.step([loader_step(every[r], total) for r in units.replicas(at)])
        pipe.clip_grad_norm_(0.5)
        optimizer.step()
        if not step:
            save_checkpoint(folder / "step-1", pipe, optimizer)
        named = (pair for module in pipe.modules() for pair in module.named_parameters())
        return {name: whole(value.detach()) for name, value in named}
    finally:
        pipe.close()


PLAIN, LANES = UnitSetting("1f1b", (1, 1), (1, 1)), UnitSetting("1f1b", (1, 1, 2), (1, 1, 2))


@pytest.mark.parametrize(
    ("divided", "plain"),
    [
        pytest.param(DIFFERENT[0], PLAIN, id="units of different tp"),
        pytest.param(SHARDED, replace(SHARDED, sharded=""), id="FSDP2"),
        pytest.param(LANES, PLAIN, id="of one tp", marks=pytest.mark.long),
    ],
)
def test_a_checkpoint_of_divided_modules_goes_on_with_and_without_dividing(
    pool: Pool, divided: UnitSetting, plain: UnitSetting, tmp_path: Path
) -> None:
    assert_goes_on(pool, divided, plain, tmp_path)


@pytest.mark.long
def test_a_checkpoint_goes_on_where_both_divide(eight: Pool, tmp_path: Path) -> None:
    both = replace(SHARDED, backbone=(2, 1, 2), encoder=(2, 1, 2))
    assert_goes_on(eight, both, replace(SHARDED, sharded=""), tmp_path)


def assert_goes_on(pool: Pool, divided: UnitSetting, plain: UnitSetting, tmp_path: Path) -> None:
    pool.run(train_on, divided, tmp_path, 0)
    files = sorted((tmp_path / "step-1").glob("rank-*.pt"))
    # One for each rank of the first lane and replica, and for each encoder's.
    ranks = {0, *range(divided.units.backbone.ranks, divided.units.ranks)}
    assert [file.name for file in files] == [f"rank-{rank}.pt" for rank in sorted(ranks)]
    saved = torch.load(files[0], weights_only=True)
    assert saved["model"]["2.weight"].shape == (WORDS, HIDDEN)
    assert saved["optimizer"]["2.weight"]["exp_avg"].shape == (WORDS, HIDDEN)
    assert not any(isinstance(value, DTensor) for value in saved["model"].values())
    found = pool.run(train_on, divided, tmp_path, 1)
    # A job of fewer processes is there several times, side by side.
    expected: dict[str, Tensor] = {}
    for weights in pool.run(train_on, plain, tmp_path, 1):
        expected |= weights
    for weights in found:
        for name, value in weights.items():
            torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6)


def other_mesh(rank: int) -> str:
    """Divide modules over processes of different ranks."""
    del rank
    model = make_model((2,), 1, torch.float32, merges=False)
    divide(model, make_square("tp", "rest")["tp"])
    return refused(model)


def other_seed(rank: int) -> str:
    """Give lanes norms of different values."""
    model = make_model((2,), 1, torch.float32, merges=False)
    for module in model.stages[0].modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.constant_(module.weight, 1 + rank % 2)
    return refused(model)


def sharded_over_lanes(rank: int) -> str:
    """Let FSDP2 divide a stage over processes that train on the same samples."""
    model = make_model((2,), 1, torch.float32, merges=False)
    mesh = LANES.units.mesh()["tp"]
    if LANES.units.rank_of(rank) == 0:
        fully_shard(model.stages[0], mesh=mesh)
    return refused(model)


def refused(model: Model) -> str:
    """Return the error for a model that is given as it is."""
    at = LANES.units.rank_of(dist.get_rank())
    with pytest.raises(ValueError, match=" stage 0") as found:
        make_pipe(LANES, model, at, divided=False)
    return str(found.value)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (other_mesh, "is divided over the processes [0, 2], and this rank's are [0, 1]"),
        (sharded_over_lanes, "FSDP2 does not divide 0.weight of stage 0 over data-parallel ranks"),
        (other_seed, "tensor-parallel ranks 0 and 1 do not have the same 1.norm.weight of stage 0"),
    ],
)
def test_modules_that_lanes_cannot_train_are_refused_on_all_ranks(
    pool: Pool, mistake: Callable[[int], str], words: str
) -> None:
    for text in pool.run(mistake):
        assert words in text
