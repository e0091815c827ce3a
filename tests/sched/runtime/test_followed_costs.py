"""One job whose loader orders by what its pipeline measures: two replicas of two stages."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from counterpoise import Ranks
from counterpoise.loader import Balance, DataLoader
from counterpoise.sched import CostFunction, CostProfile, Replan, Slot, dump_profile, simulate
from counterpoise.sched.runtime import Pipeline, StepLoss, load_checkpoint, save_checkpoint
from counterpoise.sched.simulation.cost_profile import profile_costs
from tests.sched.runtime.models import HIDDEN, WORDS, make_stages, total_loss
from tests.sched.runtime.pool import Pool, make_mesh

# The rules of it, without a pipeline, are in tests/loader/test_followed_costs.py.
pytestmark = [pytest.mark.slow, pytest.mark.long]

COUNT, STEP, STEPS = 144, 18, 8
# From this step on the second stage takes four times as long.
DRIFT, SAVED = 3, 7


def profile(late: bool) -> CostProfile:
    times = 4 if late else 1
    first = CostFunction(20_000, {"tokens": 1_000_000})
    second = CostFunction(times * 30_000, {"tokens": times * 200_000})
    twice = tuple(
        CostFunction(2 * one.fixed, {n: 2 * rate for n, rate in one.per_thousand.items()})
        for one in (first, second)
    )
    return CostProfile((0, 1), {"F": (first, second), "B": twice})


class Texts(torch.utils.data.Dataset[Tensor]):
    """Texts of very different lengths."""

    def __init__(self) -> None:
        draw = random.Random(4)
        self.lengths = [draw.choice((2, 3, 4, 5, 9, 17)) for _ in range(COUNT)]

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Tensor:
        return torch.arange(self.lengths[index]) % WORDS


def collate(samples: list[Tensor]) -> dict[str, Tensor]:
    return {"input_ids": torch.cat(samples), "labels": torch.cat(samples)}


def make_loader(costs: Path, **given: Any) -> DataLoader[Any, Any]:
    data = Texts()
    return DataLoader(
        data, collate_fn=collate, shuffle=True, cost={"tokens": data.lengths}, **given,
        balance=Balance(samples_per_step=STEP, accumulate=4, pipeline=str(costs)),
    )  # fmt: skip


class Told:
    """The times of a step's passes by a profile that drifts, in place of the host's."""

    def __init__(self, rank: int) -> None:
        self.rank, self.held = rank, list[dict[str, int]]()
        self.pipe: Pipeline | None = None

    def __call__(self, step: int, slots: Sequence[Slot]) -> Sequence[Slot]:
        assert self.pipe is not None
        program = self.pipe.programs()[len(self.held)]
        found = simulate(program, profile_costs(profile(step >= DRIFT), self.held))
        assert [slot.what for slot in found.ranks[self.rank]] == [slot.what for slot in slots]
        return found.ranks[self.rank]


class Seen(NamedTuple):
    """What a process was given, by step, and what it knows at the end."""

    keys: dict[int, list[tuple[int, tuple[str, ...]]]]
    changes: Any
    costs: str
    digests: list[str]


def run(rank: int, folder: Path, follows: bool, resumed: bool) -> Seen:
    mesh = make_mesh(2)
    own = mesh["pp"].get_local_rank()
    stages: list[nn.Module] = [stage.float() for stage in make_stages(2)]
    told = Told(own)
    replan = Replan(None, profile(False), threshold=0.25, window=2, measure=told)
    pipe = Pipeline(
        mesh, schedule="1f1b", stages={own: stages[own]}, hidden=HIDDEN,
        loss=StepLoss(total_loss, weigh="sample"), deadline_s=40,
        replan=replan if follows else "off",
    )  # fmt: skip
    told.pipe = pipe
    loader = make_loader(
        folder / "first.json", ranks=Ranks(mesh, name=str(resumed)), num_workers=1,
        multiprocessing_context="fork",  # the pool's own method starts clean processes: seconds
    )  # fmt: skip
    loader.follow_costs(pipe)
    keys: dict[int, list[tuple[int, tuple[str, ...]]]] = {}
    digests = []
    try:
        if resumed:
            extra = load_checkpoint(folder / "saved", pipe)
            loader.load_state_dict(extra["loader"])
        for step in loader.steps():
            keys[step.number] = [(info.rank, info.keys) for info in step.infos]
            told.held = [dict(info.costs) for info in step.infos]
            pipe.step(step)
            digests.append(loader.state_dict()["digest"])
            if follows and step.number + 1 == SAVED and not resumed:
                save_checkpoint(folder / "saved", pipe, None, {"loader": loader.state_dict()})
        return Seen(keys, pipe.plan_changes(), pipe.measured_costs()[0], digests)
    finally:
        torch.distributed.barrier()
        loader.close()
        pipe.close()


def planned(costs: Path) -> dict[int, list[tuple[int, tuple[str, ...]]]]:
    """Return what one process that plays both ranks is given by these costs."""
    loader = make_loader(costs, ranks=Ranks(virtual=2))
    return {step.number: [(i.rank, i.keys) for i in step.infos] for step in loader.steps()}


def of_rank(step: list[tuple[int, tuple[str, ...]]], rank: int) -> list[tuple[int, Any]]:
    return [each for each in step if each[0] == rank]


def test_a_loader_orders_by_what_its_pipeline_measures(pool: Pool, tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    first.write_text(dump_profile(profile(False)))
    found = pool.run(run, tmp_path, True, False)
    (change,) = found[0].changes
    assert DRIFT < change.step < SAVED
    assert change.measured_after_ns > 0
    assert {(one.changes, one.costs, *one.digests) for one in found} == {
        (found[0].changes, found[0].costs, *found[0].digests)
    }
    # The ledger says by which costs each step was planned.
    digests = found[0].digests
    assert digests == [digests[0]] * change.step + [digests[-1]] * (STEPS - change.step)
    assert digests[0] != digests[-1]
    second.write_text(found[0].costs)
    before, after = planned(first), planned(second)
    assert all(before[n] != after[n] for n in range(change.step, STEPS))
    for process, one in enumerate(found):
        for number in range(STEPS):
            wanted = (before if number < change.step else after)[number]
            assert one.keys[number] == of_rank(wanted, process // 2)
    again = pool.run(run, tmp_path, True, True)
    for one, whole in zip(again, found, strict=True):
        assert one.keys == {n: keys for n, keys in whole.keys.items() if n >= SAVED}
        assert one.costs == whole.costs
    assert again[0].digests == digests[SAVED:]
