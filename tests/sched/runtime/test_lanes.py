"""Lanes of tensor parallelism: what must be the same in all of them is compared."""

import re

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from counterpoise.sched.ir.program import Pass
from counterpoise.sched.runtime import Units, UnitSize, VocabParallel
from counterpoise.sched.runtime.gradients import Reduction, clip_gradients, settle
from counterpoise.sched.runtime.job.lanes import Lanes
from counterpoise.sched.runtime.settings import StageOptions
from counterpoise.sched.runtime.stage.calling import call_module
from counterpoise.sched.runtime.units.place import UnitPlace
from tests.sched.runtime.pool import Pool, make_square

pytestmark = pytest.mark.slow
WIDTH = 5


def lanes_of(rank: int, parameters: dict[str, nn.Parameter]) -> Lanes:
    """Two lanes of a pipeline of two ranks."""
    mesh = make_square("pp", "tp")
    group, lanes = mesh["pp"].get_group(), mesh["tp"].get_group()
    pipelines, cpu, units = ((0, 2), (1, 3)), torch.device("cpu"), Units(UnitSize(1, 2))
    place = UnitPlace(pipelines, rank // 2, (group,), None, lanes, cpu, units)
    return Lanes(place, {}, parameters, 40.0)


def compare(rank: int, size: float) -> list[str]:
    """Return the errors of two comparisons, where lanes' gradients differ by `size` of them."""
    late, plain = (nn.Parameter(torch.ones(WIDTH)) for _ in range(2))
    frozen = nn.Parameter(torch.ones(WIDTH), requires_grad=False)
    lanes = lanes_of(rank, {"late": late, "frozen": frozen, "norm.weight of stage 0": plain})
    plain.grad = torch.ones(WIDTH)
    plain.grad[2] += size * (rank % 2)
    found = []
    for _ in range(2):  # each parameter once: the late one with the second step
        try:
            lanes.compare_gradients()
        except ValueError as error:
            found.append(str(error))
        late.grad = torch.ones(WIDTH) * (1 + rank % 2 * (size > 0.1))
    return found


def test_gradients_of_which_a_lane_has_a_part_are_refused_in_all_lanes(pool: Pool) -> None:
    assert pool.run(compare, 0.01) == [[]] * 4
    for found in pool.run(compare, 0.5):
        assert [text.partition(" is not divided")[0] for text in found] == [
            "norm.weight of stage 0",
            "late",
        ]
        assert "differ by 50%: some lane computes a part" in found[0]


def divided_gradients(rank: int) -> dict[str, Tensor]:
    """Sum and clip gradients that are divided, whole, and parts of a sum, over 2 x 2 ranks."""
    mesh = make_square("dp", "tp")
    tp = mesh["tp"]
    value = torch.arange(WIDTH, dtype=torch.float32)  # does not divide
    parameters = {
        "shard": nn.Parameter(distribute_tensor(value, tp, [Shard(0)])),
        "replicate": nn.Parameter(distribute_tensor(value, tp, [Replicate()])),
        "sum": nn.Parameter(distribute_tensor(value, tp, [Replicate()])),
        "alone": nn.Parameter(distribute_tensor(value, tp, [Replicate()])),
        "both": nn.Parameter(distribute_tensor(value, mesh, [Shard(0), Shard(0)])),
        "plain": nn.Parameter(value.clone()),
        "none": nn.Parameter(distribute_tensor(value, tp, [Shard(0)])),
    }
    part = DTensor.from_local(value * (1 + 2 * (rank % 2)), tp, [Partial()])  # 4 x the value
    if rank < 2:  # the other replica has no gradient of it
        parameters["sum"].grad = part
    for name in ("shard", "replicate", "both"):
        parameters[name].grad = parameters[name].detach().clone()
    parameters["plain"].grad = value.clone()
    parameters["alone"].grad = part
    settle([parameters["alone"]])  # as for those that no other rank has
    reduction = Reduction(mesh["dp"].get_group())
    reduction.start(p for name, p in parameters.items() if name not in ("alone", "both", "none"))
    reduction.finish(40.0)
    norm = clip_gradients(parameters.values(), 1.0, pipelines=dist.new_subgroups(1)[:1])
    found = {
        name: p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
        for name, p in parameters.items()
        if p.grad is not None
    }
    return {**found, "norm": norm}


def test_divided_gradients_are_summed_and_clipped_as_whole_ones(pool: Pool) -> None:
    value = torch.arange(WIDTH, dtype=torch.float32)
    wanted = {"shard": 2 * value, "replicate": 2 * value, "sum": 4 * value, "plain": 2 * value}
    wanted |= {"alone": 4 * value, "both": value}  # as FSDP2 leaves it, summed already
    norm = torch.cat([*wanted.values()]).norm()
    for found in pool.run(divided_gradients):
        torch.testing.assert_close(found.pop("norm"), norm)
        torch.testing.assert_close(found, {name: each / norm for name, each in wanted.items()})


def outputs_and_heads(rank: int) -> list[str]:
    """Return the errors for a stage that gives a DTensor, and for vocabulary layers that are."""
    del rank
    tp = make_square("dp", "tp")["tp"]
    layer = nn.Linear(4, 4)
    parallelize_module(layer, tp, ColwiseParallel(use_local_output=False))
    with pytest.raises(TypeError) as output:
        call_module(layer, [torch.ones(1, 4)], {}, StageOptions(), Pass(3, "F", 0))
    with pytest.raises(TypeError) as head:
        VocabParallel(layer)
    return [str(output.value), str(head.value)]


def test_stages_end_with_local_tensors_and_vocabulary_layers_are_plain(pool: Pool) -> None:
    for output, head in pool.run(outputs_and_heads):
        assert re.search("3F0 returned a DTensor; end it with a layer", output)
        assert "the vocabulary's layers are DTensors" in head
